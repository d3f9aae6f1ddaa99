// What slackline does with what its program in Python says. That program is a
// script of the test here; with Ray it is in tests/cluster/ray_test.py.
#include "tools/cli/launch/ray_bridge.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tools/cli/launch/remote_cluster.h"

namespace slackline::ray_bridge_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RayBridgeTest : public ::testing::Test {
 protected:
  RayBridgeTest()
      : folder_(absl::StrCat(testing::TempDir(), "ray_bridge_test.", getpid())),
        signals_(SignalWatch::Create().value()) {
    std::filesystem::create_directories(folder_);
  }
  ~RayBridgeTest() override { std::filesystem::remove_all(folder_); }

  // Two servers and three workers on two stand-ins.
  config::ClusterConfig Config(const std::string& more = "") {
    ConfigOverrides overrides;
    overrides.hosts = {{.host = "ray-node-1", .slots = 0},
                       {.host = "ray-node-2", .slots = 0}};
    overrides.hosts_origin = "--on ray";
    return ParseJobConfig(
               absl::StrCat("job: \"small\" insecure: true server { count: 2 } "
                            "worker { count: 3 threads: 2 command: \"w\" } "
                            "launch { ray { python: \"",
                            folder_, "/python\" ", more, " } }"),
               "job.textproto", overrides)
        .value();
  }

  // `script` is what the program does: it has the request in $request.
  absl::StatusOr<std::unique_ptr<RayBridge>> Start(
      const std::string& script, const std::string& more = "",
      bool on_these_hosts = false) {
    const std::string path = folder_ + "/python";
    std::ofstream(path) << "#!/bin/sh\nread -r request\necho \"$request\" > "
                        << folder_ << "/request\n"
                        << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return RayBridge::Start(
        {.config = Config(more),
         .on_these_hosts = on_these_hosts,
         .say = [this](const std::string& text) { said_.push_back(text); }});
  }
  std::string Asked() const {
    std::ifstream file(folder_ + "/request");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string ErrorOf(const std::string& script) {
    return std::string(
        Start(script).value()->AwaitNodes(signals_.get()).status().message());
  }

  const std::string folder_;
  const std::unique_ptr<SignalWatch> signals_;
  std::vector<std::string> said_;
};

TEST_F(RayBridgeTest, AClusterThatIsGoneIsNamedByItsHead) {
  const std::string hosts =
      "echo '{\"hosts\": [\"a\", \"b\"], \"head\": \"h:6379\"}'\n";
  const auto why_gone = [&](const std::string& script) {
    const auto bridge = Start(hosts + script);
    EXPECT_TRUE(bridge.ok() && (*bridge)->AwaitNodes(signals_.get()).ok());
    EXPECT_EQ((*bridge)->LookCommand(), "ray status --address=h:6379");
    return (*bridge)->WhyGone();
  };
  const std::string answers =
      "read -r asked\n[ \"$asked\" = '{\"ask\": "
      "\"gone\"}' ] || exit 1\n";
  EXPECT_EQ(why_gone(answers + "echo '{\"gone\": \"\"}'; read -r end"), "");
  EXPECT_EQ(why_gone(answers + "echo '{\"gone\": \"refused\"}'; read -r end"),
            "the Ray cluster at h:6379 is gone: refused");
  // Ray ends the program.
  EXPECT_THAT(why_gone("echo 'no raylet' >&2"),
              AllOf(HasSubstr("the Ray cluster at h:6379 is gone: the bridge "),
                    HasSubstr("has ended: no raylet")));
}

TEST_F(RayBridgeTest, NodesTakeThePlacesOfStandInsAndOfThoseThatAreLost) {
  const auto bridge = Start(
      "echo '{\"say\": \"waits\"}'\n"
      "echo '{\"hosts\": [\"10.0.0.1\", \"10.0.0.2\"]}'\n"
      "read -r again\necho '{\"hosts\": [\"10.0.0.1\", \"10.0.0.3\"]}'\n"
      "read -r end",
      "resource: \"memory=16e9\" autoscaled: true");
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  auto config = (*bridge)->AwaitNodes(signals_.get());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(said_, ElementsAre("waits"));
  EXPECT_THAT(HostsOfMembers(*config), ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_EQ(config->coordinator().host(), "10.0.0.1");
  // The node that has most of them: a server and two workers.
  EXPECT_THAT(Asked(), AllOf(HasSubstr("\"CPU\":5,"),
                             HasSubstr("\"memory\":16000000000.0"),
                             HasSubstr("\"autoscaled\":true"),
                             HasSubstr("\"address\":\"auto\"")));
  config = (*bridge)->ReplaceNodes(signals_.get());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(HostsOfMembers(*config), ElementsAre("10.0.0.1", "10.0.0.3"));
}

TEST_F(RayBridgeTest, HostsThatAreNamedBindTheirBundles) {
  ASSERT_TRUE(Start("read -r end", "", /*on_these_hosts=*/true).ok());
  EXPECT_THAT(Asked(), AllOf(HasSubstr("\"node:ray-node-1\":0.001"),
                             HasSubstr("\"node:ray-node-2\":0.001")));
}

TEST_F(RayBridgeTest, WhatIsNoPythonIsNamedWithItsLastWords) {
  EXPECT_THAT(ErrorOf("echo no such option >&2; exit 3"),
              AllOf(HasSubstr("launch.ray.python ("),
                    HasSubstr("has ended: no such option")));
}

TEST_F(RayBridgeTest, WhatGoesWrongIsSaid) {
  EXPECT_EQ(ErrorOf("echo '{\"error\": \"too small\"}'"),
            "--on ray: too small");
  EXPECT_THAT(ErrorOf("echo no module >&2; exit 1"),
              AllOf(HasSubstr("has ended"), HasSubstr("no module")));
  EXPECT_THAT(ErrorOf("echo hello"), HasSubstr("'hello', which is no message"));
  EXPECT_THAT(ErrorOf("echo '{\"hosts\": [\"10.0.0.1\"]}'"),
              HasSubstr("has given 1 nodes, and 2 are needed"));
  EXPECT_THAT(ErrorOf("echo '{\"hosts\": [\"10.0.0.1\", 7]}'"),
              HasSubstr("are needed"));
}

TEST_F(RayBridgeTest, MoreNodesThanCanHaveAProcessAreRefused) {
  EXPECT_THAT(std::string(Start("", "nodes: 3").status().message()),
              HasSubstr("value is 3; the servers and workers of the config are "
                        "on 2 nodes at most"));
  EXPECT_THAT(
      std::string(
          Start("", "nodes: 1", /*on_these_hosts=*/true).status().message()),
      HasSubstr("value is 1, and 2 hosts are named"));
  config::ClusterConfig config = Config();
  config.mutable_launch()->mutable_ray()->set_python("/nowhere/python3");
  const absl::Status none = RayBridge::Start({.config = config}).status();
  EXPECT_THAT(
      std::string(none.message()),
      AllOf(HasSubstr("launch.ray.python: "), HasSubstr("/nowhere/python3"),
            HasSubstr("name a Python that has Ray")));
}

}  // namespace slackline::ray_bridge_test
