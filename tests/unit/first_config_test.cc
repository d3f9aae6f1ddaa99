// Goal: what `slackline init` writes is a config of what was asked for, or the
// flag that does not fit is named. Method: a table of jobs.
#include "tools/cli/init/first_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "job/job_config.h"

namespace slackline::first_config_test {

using ::testing::HasSubstr;

config::ClusterConfig Parsed(const FirstJob& job) {
  const absl::StatusOr<std::string> text = FirstConfig(job);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<config::ClusterConfig> config =
      ParseJobConfig(text.value_or(""), "job.textproto");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.value_or(config::ClusterConfig());
}

TEST(FirstConfigTest, HasTheProcessesThatWereAskedFor) {
  const config::ClusterConfig one = Parsed({.workers = 1});
  EXPECT_EQ(one.server_size(), 1);
  EXPECT_EQ(one.worker(0).count(), 1);
  const config::ClusterConfig copies = Parsed({.workers = 1, .copies = true});
  EXPECT_EQ(copies.server(0).count(), 2);
  EXPECT_EQ(copies.replicas(), 1);
  const config::ClusterConfig hosts =
      Parsed({.program = "python3 'my train.py' \"x\"",
              .servers = 3,
              .engine = "ssh",
              .hosts = {{"n1", 4}, {"n2", 1}},
              .mode = "ssp:4",
              .checkpoints = "/shared/a \"b\""});
  ASSERT_EQ(hosts.server_size(), 2);
  EXPECT_EQ(hosts.server(0).host(), "n1");
  EXPECT_EQ(hosts.server(0).count(), 2);
  EXPECT_EQ(hosts.server(1).count(), 1);
  ASSERT_EQ(hosts.worker_size(), 2);
  EXPECT_EQ(hosts.worker(0).count(), 4);
  EXPECT_EQ(hosts.worker(1).command(), "python3 'my train.py' \"x\"");
  EXPECT_EQ(hosts.sync().ssp().staleness(), 4);
  EXPECT_EQ(hosts.checkpoint().folder(), "/shared/a \"b\"");
  EXPECT_TRUE(hosts.launch().has_ssh());
}

TEST(FirstConfigTest, EveryHostHasAServerUnlessFewerAreAskedFor) {
  EXPECT_EQ(
      Parsed({.engine = "ssh", .hosts = {{"n1", 1}, {"n2", 1}, {"n3", 1}}})
          .server_size(),
      3);
  EXPECT_EQ(Parsed({.servers = 1,
                    .engine = "ssh",
                    .hosts = {{"n1", 1}, {"n2", 1}, {"n3", 1}}})
                .server_size(),
            1);
}

TEST(FirstConfigTest, WhatDoesNotFitIsNamed) {
  const struct {
    FirstJob job;
    const char* words;
  } cases[] = {
      {{.workers = 0}, "--workers: value is 0; 1 to 4096"},
      {{.servers = 5000}, "--servers: value is 5000; 1 to 4096"},
      {{.engine = "mpi"}, "--on: value is mpi; here, ssh, slurm or ray"},
      {{.engine = "ssh"}, "--hosts: ssh needs the hosts"},
      {{.engine = "here", .hosts = {{"n1", 1}}}, "--hosts: with --on here"},
      {{.mode = "fast"}, "'fast' is no mode"},
      {{.servers = 1, .copies = true},
       "--servers: copies are on another server"},
      {{.engine = "slurm", .checkpoints = "here"},
       "--checkpoints: value is here; with --on slurm an absolute path"},
  };
  for (const auto& c : cases) {
    const absl::StatusOr<std::string> text = FirstConfig(c.job);
    EXPECT_TRUE(absl::IsInvalidArgument(text.status())) << c.words;
    EXPECT_THAT(std::string(text.status().message()), HasSubstr(c.words));
  }
}

}  // namespace slackline::first_config_test
