// Hosts that are given beside a config, and where its processes come.
#include "common/config/placement.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"

namespace slackline::placement_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostsTest, AreReadAsMpirunAndHorovodrunTakeThem) {
  EXPECT_THAT(ParseHosts("h1:4,h2,[fd00::5]:2,fd00::6").value(),
              ElementsAre(HostSlots{"h1", 4}, HostSlots{"h2", 1},
                          HostSlots{"fd00::5", 2}, HostSlots{"fd00::6", 1}));
  EXPECT_THAT(
      ParseHostFile("# two of them\nh1 slots=4\n\n  h2\t slots=2 # slow\nh3\n"
                    "h4 slots = 3 max_slots=9\n")
          .value(),
      ElementsAre(HostSlots{"h1", 4}, HostSlots{"h2", 2}, HostSlots{"h3", 1},
                  HostSlots{"h4", 3}));
}

TEST(HostsTest, WhatIsWrongIsNamed) {
  const auto error = [](absl::string_view text) {
    return std::string(ParseHosts(text).status().message());
  };
  EXPECT_THAT(error(""), HasSubstr("a host is missing"));
  EXPECT_THAT(error("h1,,h2"), HasSubstr("a host is missing"));
  EXPECT_THAT(error("h1:0"), HasSubstr("'h1:0': the number of workers is 0"));
  EXPECT_THAT(error("h1:x"), HasSubstr("the number of workers is x"));
  EXPECT_THAT(error("h1:9999"), HasSubstr("1 to 4096 is required"));
  EXPECT_THAT(error("h1:2,H1:3"), HasSubstr("named twice"));
  EXPECT_EQ(
      error("h1=4"),
      "'h1=4': no name of a host has '=' in it; HOST:WORKERS is required, "
      "with commas in between, as in h1:4,h2:4");
  EXPECT_THAT(error("h1:1,h2 h3"), HasSubstr("'h2 h3': no name of a host has"));
  EXPECT_EQ(
      error("me@h1:4"),
      "'me@h1:4': no name of a host has '@' in it; name the user by --set "
      "launch.ssh.user=NAME");
  EXPECT_EQ(error("höst_1:2"), "");
  const auto file_error = [](absl::string_view text) {
    return std::string(ParseHostFile(text).status().message());
  };
  EXPECT_THAT(file_error("h1\nh2 cpus=3\n"),
              HasSubstr("line 2: 'h2 cpus=3': a host, and perhaps slots=N"));
  EXPECT_THAT(file_error("h1:2\n"), HasSubstr("line 1: 'h1:2': a host, and"));
  EXPECT_THAT(file_error("h1 slots=\n"), HasSubstr("line 1: "));
  EXPECT_THAT(file_error("h1 slots=-1"), HasSubstr("line 1: "));
  EXPECT_THAT(file_error("# none\n"), HasSubstr("no host is named"));
  EXPECT_THAT(std::string(ReadHostFile("/no/such").status().message()),
              HasSubstr("/no/such"));
}

// Counts alone; `more` is in the groups.
std::string Job(int servers, int workers, const std::string& server = "",
                const std::string& worker = "") {
  return absl::StrCat("job: \"j\" insecure: true server { count: ", servers,
                      " ", server, " } worker { count: ", workers,
                      " command: \"./train\" ", worker, " }");
}

absl::StatusOr<config::ClusterConfig> Placed(const std::string& text,
                                             const std::string& hosts) {
  ConfigOverrides overrides;
  overrides.hosts = ParseHosts(hosts).value();
  overrides.hosts_origin = absl::StrCat("--hosts ", hosts);
  return ParseJobConfig(text, "j.textproto", overrides);
}

std::vector<std::string> ServersOf(const config::ClusterConfig& config) {
  std::vector<std::string> places;
  for (const ServerProcess& server : ServerProcesses(config))
    places.push_back(absl::StrCat(server.host, ":", server.first_port));
  return places;
}

std::vector<std::string> WorkersOf(const config::ClusterConfig& config) {
  std::vector<std::string> places;
  for (const WorkerProcess& worker : WorkerProcesses(config))
    places.push_back(absl::StrCat(worker.host, ":", worker.port));
  return places;
}

TEST(PlacementTest, ServersGoRoundAndWorkersFillOneHostAfterTheOther) {
  const auto config = Placed(Job(3, 5), "a:2,b:3");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(ServersOf(*config), ElementsAre("a:0", "b:0", "a:0"));
  EXPECT_THAT(WorkersOf(*config),
              ElementsAre("a:0", "a:0", "b:0", "b:0", "b:0"));
  EXPECT_EQ(config->coordinator().host(), "a");
  EXPECT_EQ(config->worker_size(), 2);
}

TEST(PlacementTest, WorkersAreSpreadEvenlyWhereNobodySaysHowMany) {
  ConfigOverrides overrides;
  overrides.hosts = {{"a", 0}, {"b", 0}, {"c", 0}};
  overrides.hosts_origin = "--on slurm";
  const auto config = ParseJobConfig(Job(1, 5), "j.textproto", overrides);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(WorkersOf(*config),
              ElementsAre("a:0", "a:0", "b:0", "b:0", "c:0"));
  const auto few = ParseJobConfig(Job(1, 1), "j.textproto", overrides);
  EXPECT_THAT(WorkersOf(*few), ElementsAre("a:0"));
}

TEST(PlacementTest, PortsAndGpusStayThoseOfTheirProcesses) {
  const auto config = Placed(Job(2, 3, "port: 9000 threads: 4",
                                 "port: 9100 device: CUDA gpu: [5, 6, 7]"),
                             "a:1,b:2");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(ServersOf(*config), ElementsAre("a:9000", "b:9004"));
  EXPECT_THAT(WorkersOf(*config), ElementsAre("a:9100", "b:9101", "b:9102"));
  std::vector<int> gpus;
  for (const WorkerProcess& worker : WorkerProcesses(*config))
    gpus.push_back(worker.gpu);
  EXPECT_THAT(gpus, ElementsAre(5, 6, 7));
}

TEST(PlacementTest, HostsOfTheConfigAreReplaced) {
  const auto config =
      Placed(absl::StrCat("coordinator { host: \"old\" port: 7 } ",
                          Job(1, 2, "host: \"old\"", "host: \"older\"")),
             "a:2");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(WorkersOf(*config), ElementsAre("a:0", "a:0"));
  EXPECT_EQ(config->coordinator().host(), "a");
  EXPECT_EQ(config->coordinator().port(), 7);
}

TEST(PlacementTest, TooFewSlotsAndWrongCountsAreNamedWithTheirFlag) {
  EXPECT_THAT(std::string(Placed(Job(1, 5), "a:2,b").status().message()),
              HasSubstr("--hosts a:2,b: the hosts take 3 workers, and the "
                        "config has 5"));
  EXPECT_THAT(std::string(Placed(Job(1, -5), "a:2").status().message()),
              HasSubstr("worker[0].count: value is -5"));
  EXPECT_THAT(std::string(Placed(Job(1, 2000000000), "a:2").status().message()),
              HasSubstr("worker[0].count: value is 2000000000"));
  // What else is wrong is where it was.
  EXPECT_THAT(
      std::string(
          Placed("\n" + Job(2, 2, "threads: 0"), "a:2,b").status().message()),
      HasSubstr("j.textproto:2:"));
}

TEST(LaunchTest, TheFlagPicksTheBlockAndKeepsWhatItHas) {
  ConfigOverrides overrides;
  overrides.engine = "ssh";
  const std::string text =
      Job(1, 1, "host: \"a\"", "host: \"a\"") + " launch { ssh { port: 22 } }";
  const auto config = ParseJobConfig(text, "j.textproto", overrides);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->launch().ssh().port(), 22);
  EXPECT_EQ(config->launch().ssh().program(), "ssh");
  overrides.sets = {"launch.ssh={port: 2222}"};
  EXPECT_EQ(
      ParseJobConfig(text, "j.textproto", overrides)->launch().ssh().port(),
      2222);
  overrides.sets.clear();
  overrides.engine = "here";
  EXPECT_TRUE(
      ParseJobConfig(text, "j.textproto", overrides)->launch().has_here());
  overrides.engine = "shh";
  EXPECT_THAT(
      std::string(
          ParseJobConfig(text, "j.textproto", overrides).status().message()),
      HasSubstr("--on shh: is not known; here, ssh, slurm, ray, kubernetes "
                "are"));
}

TEST(LaunchTest, PathsAreWholeAndVariablesHaveValues) {
  const auto error = [](const std::string& launch) {
    return std::string(ParseJobConfig(Job(1, 1, "host: \"a\"", "host: \"a\"") +
                                          " launch { " + launch + " }",
                                      "j.textproto")
                           .status()
                           .message());
  };
  EXPECT_THAT(error("bin_dir: \"bin\""),
              HasSubstr("launch.bin_dir: value is 'bin'; an absolute path"));
  EXPECT_THAT(error("environment: \"A\""), HasSubstr("NAME=VALUE is required"));
  EXPECT_THAT(error("ssh { port: 0 }"), HasSubstr("launch.ssh.port"));
}

}  // namespace slackline::placement_test
