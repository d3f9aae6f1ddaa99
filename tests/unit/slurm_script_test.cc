// The batch script of a job, as a function of its config.
#include "tools/cli/launch/slurm_script.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"

namespace slackline::slurm_script_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJob[] = R"(
  job: "mnist"
  server { count: 2 threads: 3 }
  worker { count: 4 threads: 2 }
  model { softmax {} }
  data { teacher_student { features: 16 classes: 4 } batch_size: 64 }
  optimizer { sgd { learning_rate: 0.1 } }
  train { epochs: 2 }
  insecure: true
)";

SlurmScriptParts PartsOf(const std::string& slurm, int nodes,
                         const std::string& more = "") {
  std::vector<HostSlots> hosts;
  for (int i = 1; i <= nodes; ++i)
    hosts.push_back({.host = absl::StrCat("slurm-node-", i), .slots = 0});
  ConfigOverrides overrides;
  overrides.hosts = hosts;
  overrides.hosts_origin = "--on slurm";
  const absl::StatusOr<config::ClusterConfig> config = ParseJobConfig(
      absl::StrCat(kJob, "launch { slurm { ", slurm, " } }\n", more), "c.txt",
      overrides);
  EXPECT_TRUE(config.ok()) << config.status();
  return {.config = config.value_or(config::ClusterConfig()),
          .command = {"/bin/slackline", "run", "job.textproto", "--on", "slurm",
                      "--out", "runs/a"},
          .folder = "/home/me",
          .out_dir = "runs/a"};
}

std::string Script(const std::string& slurm, int nodes,
                   const std::string& more = "") {
  const absl::StatusOr<std::string> script =
      SlurmScript(PartsOf(slurm, nodes, more));
  EXPECT_TRUE(script.ok()) << script.status();
  return script.value_or("");
}

TEST(SlurmScriptTest, IsShortAndReadable) {
  EXPECT_EQ(Script("", 1),
            "#!/bin/sh\n"
            "#SBATCH --job-name=mnist\n"
            "#SBATCH --chdir=/home/me\n"
            "#SBATCH --output=runs/a/slurm/%j.log\n"
            "#SBATCH --open-mode=append\n"
            "#SBATCH --nodes=1\n"
            "#SBATCH --ntasks-per-node=1\n"
            "#SBATCH --cpus-per-task=14\n"
            "#SBATCH --signal=B:INT@120\n"
            "# exec: the signals of Slurm and scancel reach slackline run.\n"
            "exec /bin/slackline run job.textproto --on slurm --out runs/a\n");
}

TEST(SlurmScriptTest, SaysWhatTheConfigSaysAndTheUsersOptionsLast) {
  const std::string script = Script(
      "partition: 'gpu' account: 'p1' qos: 'low' time: '2:00:00' constraint: "
      "'a&b' nodes: 3 warning_seconds: 60 requeue: true option: '--exclusive' "
      "option: '--comment=two words'",
      3, "checkpoint { every_epochs: 1 }\nreplicas: 1\n");
  for (const char* const option :
       {"--partition=gpu", "--account=p1", "--qos=low", "--time=2:00:00",
        "'--constraint=a&b'", "--nodes=3", "--signal=B:TERM@60", "--requeue",
        "--no-kill"}) {
    EXPECT_THAT(script, HasSubstr(absl::StrCat("\n#SBATCH ", option, "\n")));
  }
  EXPECT_THAT(script, HasSubstr("#SBATCH --exclusive\n"
                                "#SBATCH '--comment=two words'\n# exec"));
}

TEST(SlurmScriptTest, ANodeHasTheProcessorsOfItsProcesses) {
  // Servers go round: node 1 has one of 3 threads and workers 0 and 1.
  EXPECT_THAT(Script("nodes: 2", 2),
              AllOf(HasSubstr("--nodes=2\n"), HasSubstr("--cpus-per-task=7\n"),
                    Not(HasSubstr("--gpus"))));
  SlurmScriptParts parts = PartsOf("nodes: 2", 2);
  for (config::WorkerGroup& group : *parts.config.mutable_worker())
    group.set_device(config::WorkerGroup::CUDA);
  const SlurmNeeds needs = NeedsOf(parts.config);
  EXPECT_EQ(needs.gpus_per_node, 2);
  EXPECT_THAT(*SlurmScript(parts), HasSubstr("#SBATCH --gpus-per-node=2\n"));
}

TEST(SlurmScriptTest, MoreNodesThanProcessesAreRefused) {
  const absl::StatusOr<std::string> script =
      SlurmScript(PartsOf("nodes: 9", 9));
  EXPECT_EQ(script.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(script.status().message()),
              HasSubstr("value is 9; the servers and workers of the config are "
                        "on 4 nodes at most"));
}

TEST(SlurmScriptTest, ATimeLimitIsReadAsSbatchDoes) {
  for (const auto& [text, time] :
       {std::pair("30", absl::Minutes(30)),
        std::pair("1:30", absl::Seconds(90)),
        std::pair("2:00:01", absl::Hours(2) + absl::Seconds(1)),
        std::pair("1-12", absl::Hours(36)),
        std::pair("1-12:30", absl::Hours(36) + absl::Minutes(30)),
        std::pair("0-0:0:5", absl::Seconds(5))}) {
    EXPECT_EQ(SlurmTime(text), time) << text;
  }
  for (const char* const other : {"", "infinite", "1-", "-1", "1:2:3:4", "a-1"})
    EXPECT_EQ(SlurmTime(other), std::nullopt) << other;
}

TEST(SlurmScriptTest, TimeThatIsOverAtItsWarningIsRefused) {
  const absl::StatusOr<std::string> script =
      SlurmScript(PartsOf("time: '2' warning_seconds: 61", 1));
  EXPECT_EQ(script.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(script.status().message()),
              AllOf(HasSubstr("value is 2, which is 2m; "),
                    HasSubstr("at least 2m1s is required, or a shorter")));
  EXPECT_THAT(Script("time: '2' warning_seconds: 60", 1),
              HasSubstr("--time=2\n"));
  EXPECT_THAT(Script("time: 'infinite'", 1), HasSubstr("--time=infinite\n"));
}

TEST(SlurmScriptTest, HostsThatAreNamedAreTheNodes) {
  SlurmScriptParts parts = PartsOf("", 2);
  parts.on_these_hosts = true;
  EXPECT_THAT(*SlurmScript(parts),
              HasSubstr("#SBATCH --nodes=2\n"
                        "#SBATCH --nodelist=slurm-node-1,slurm-node-2\n"));
}

TEST(SlurmScriptTest, AnotherNumberOfNodesThanHostsIsRefused) {
  SlurmScriptParts parts = PartsOf("nodes: 3", 2);
  parts.on_these_hosts = true;
  const absl::StatusOr<std::string> script = SlurmScript(parts);
  EXPECT_EQ(script.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(script.status().message()),
              HasSubstr("value is 3, and 2 hosts are named"));
  parts = PartsOf("nodes: 2", 2);
  parts.on_these_hosts = true;
  EXPECT_TRUE(SlurmScript(parts).ok());
}

TEST(SlurmScriptTest, SignsOfItsOwnMeanThemselves) {
  SlurmScriptParts parts = PartsOf("", 1);
  parts.out_dir = "runs/100%";
  parts.command = {"/bin/slackline", "run", "my job.textproto"};
  EXPECT_THAT(
      *SlurmScript(parts),
      AllOf(HasSubstr("--output=runs/100%%/slurm/%j.log\n"),
            HasSubstr("\nexec /bin/slackline run 'my job.textproto'\n")));
}

}  // namespace slackline::slurm_script_test
