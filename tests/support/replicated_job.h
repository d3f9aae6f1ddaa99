// Fixture for tests of jobs whose shards have copies: servers die, and the job
// goes on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"
#include "tools/cli/job/copies.h"

namespace slackline {

inline constexpr absl::Duration kLease = absl::Seconds(2);
inline constexpr int kEpochs = 20;
inline constexpr int64_t kSteps = 100 * kEpochs;
// A job lasts half a minute on a machine that is not busy, and then there is
// what is waited for in its midst.
inline constexpr absl::Duration kEndMax = absl::Minutes(3);

class ReplicatedJob : public JobTest {
 protected:
  // 3 servers, 22 shards with a copy each.
  static std::string JobText() {
    return absl::StrCat(
        "replicas: 1\n",
        absl::StrReplaceAll(SmallJob({.lease_ms = static_cast<int>(
                                          absl::ToInt64Milliseconds(kLease))}),
                            {{"hidden: 32", "hidden: 256"},
                             {"server { host: \"127.0.0.1\" count: 2 }",
                              "server { host: \"127.0.0.1\" count: 3 }"}}));
  }
  static std::vector<std::string> Arguments(const std::string& mode,
                                            int step_ms = 10) {
    // Steps of at least that long make the length of the job a property of the
    // test.
    return {absl::StrCat("--mode=", mode),
            absl::StrCat("--set=train.epochs=", kEpochs),
            absl::StrCat("--set=worker[0].conditions.step_ms=", step_ms)};
  }
  std::string Job() const { return Path("run"); }
  std::string ResolvedConfig() const { return Path("run/cluster.textproto"); }
  std::unique_ptr<Process> StartJob(const std::string& mode) {
    return StartRun("run", Write("job.textproto", JobText()), Arguments(mode));
  }
  // `slackline ARGUMENTS` that must end well; returns what it says.
  std::string Tool(const std::string& name,
                   const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> tool = StartTool(name, arguments);
    EXPECT_EQ(tool->WaitText(kJobMax), kEndedWell) << tool->Output();
    return tool->Output();
  }
  static const wire::ServerMember* Find(const wire::StatusReply& status,
                                        int index) {
    const auto& servers = status.view().server();
    const auto found = std::find_if(
        servers.begin(), servers.end(),
        [&](const wire::ServerMember& s) { return s.index() == index; });
    return found == servers.end() ? nullptr : &*found;
  }
  static uint64_t LifeOf(const wire::StatusReply& status, int index) {
    const wire::ServerMember* const server = Find(status, index);
    return server == nullptr ? 0 : server->incarnation();
  }
  static bool CopiesAreComplete(const wire::StatusReply& status) {
    const CopiesState copies = CopiesOf(status, 1);
    return copies.complete == copies.shards && copies.copying == 0;
  }
  // Until another process has the server's place and all shards have a copy.
  std::optional<wire::StatusReply> AwaitReplaced(
      const std::string& config, const wire::StatusReply& before, int index) {
    return AwaitStatus(config, kJobMax, [&](const wire::StatusReply& now) {
      const uint64_t life = LifeOf(now, index);
      return now.view().state() == wire::RUNNING && life != 0 &&
             life != LifeOf(before, index) && CopiesAreComplete(now);
    });
  }
  // Until the server is gone and all shards have a copy.
  std::optional<wire::StatusReply> AwaitGone(const std::string& config,
                                             int index) {
    return AwaitStatus(config, kJobMax, [&](const wire::StatusReply& now) {
      return now.view().state() == wire::RUNNING && LifeOf(now, index) == 0 &&
             CopiesAreComplete(now);
    });
  }
  static int64_t SlowestClock(const wire::StatusReply& status) {
    int64_t slowest = kSteps;
    for (const run::WorkerStats& worker : status.worker())
      slowest = std::min(slowest, worker.clock());
    return slowest;
  }
  std::string ModelOfBsp() {
    Run("still", Write("still.textproto", JobText()), Arguments("bsp", 0));
    return ReadJson(Path("still/summary.json"))["model_sha256"]
        .get<std::string>();
  }
  // The job has come to its end as if nobody had disturbed it.
  void ExpectWhole(const std::string& folder, int64_t steps = kSteps) const {
    const nlohmann::json summary =
        ReadJson(Path(absl::StrCat(folder, "/summary.json")));
    EXPECT_EQ(summary["state"], "FINISHED");
    EXPECT_EQ(summary["steps"], steps);
    EXPECT_GT(summary["test_accuracy"], 0.7);
    EXPECT_THAT(summary["workers_lost"], testing::IsEmpty());
    // Of a server that has died what it said last counts, and then it may have
    // held a gradient of each worker for each shard.
    EXPECT_NEAR(summary["pushes"].get<double>(),
                summary["applied"].get<double>() +
                    summary["held"].get<double>() +
                    summary["dropped"].get<double>() +
                    summary["nonfinite"].get<double>(),
                2 * 22 * 4);
    EXPECT_EQ(ModelSha256(ReadModel(Path(folder))), summary["model_sha256"]);
  }
};

}  // namespace slackline
