// Goal: a job of real processes meets the delays that it is given: it ends with
// the bits of the replay of the same delays, again and again, over several
// servers and shard threads; and what it cannot follow is refused with the
// reason. Method: jobs with `slackline run --delays`, compared with
// slackline_replay and with the recorded run.
#include <csignal>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::delays_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kWrongUsage[] = "exited with code 2";

class Delays : public JobTest {
 protected:
  nlohmann::json Summary(const std::string& run) const {
    return ReadJson(Path(run + "/summary.json"));
  }
  void RunReplay(const std::string& name, const std::string& cluster_file,
                 const std::string& delays,
                 const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> replay =
        StartReplay(name, cluster_file, delays, arguments);
    EXPECT_EQ(replay->WaitText(kJobMax), kEndedWell) << replay->Output();
  }
  void ExpectSame(const nlohmann::json& a, const nlohmann::json& b) {
    EXPECT_NE(a["model_sha256"], "");
    EXPECT_EQ(a["model_sha256"], b["model_sha256"]);
    for (const char* const field :
         {"steps", "test_loss", "test_accuracy", "train_loss", "dropped",
          "missed_clocks", "missed_updates", "lead", "missed_clocks_histogram",
          "missed_updates_histogram", "lead_histogram"}) {
      EXPECT_EQ(a[field], b[field]) << field;
    }
  }
  std::string Refused(const std::string& name, const std::string& exit,
                      const std::vector<std::string>& arguments) {
    const std::unique_ptr<Process> run =
        StartRun(name, Write("job.textproto", SmallJob()), arguments);
    EXPECT_EQ(run->WaitText(kJobMax), exit) << run->Output();
    return run->Output();
  }
};

TEST_F(Delays, AJobEndsWithTheBitsOfTheReplayAndSoDoesTheNextOne) {
  const std::string job = Write("job.textproto", SmallJob());
  const struct {
    const char* name;
    std::string delays;
    std::vector<std::string> sets;
  } cases[] = {
      {"momentum", "uniform:4", {"--set=server[0].threads=2"}},
      {"adam",
       "straggler:6",
       {"--set=optimizer.adam.learning_rate=0.003", "--set=model.softmax={}"}},
      {"compensated",
       "geometric:8",
       {"--set=sync.stale[0]={adaptive_delay_compensation{}}",
        "--set=sync.pull_ahead=true", "--set=worker[0].slowdown=2"}},
      {"alone",
       "uniform:4",
       {"--set=worker[0].count=1",
        "--set=sync.stale[0]={delay_compensation{lambda:0.5}}"}},
      {"dropped",
       "uniform:6",
       {"--set=sync.stale[0]={drop{beyond_clocks:3}}", "--set=train.epochs=1"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<std::string> flags = c.sets;
    flags.push_back("--set=train.max_steps=150");
    const std::string name = c.name;
    RunReplay(name + "-replay", job, c.delays, flags);
    flags.push_back(absl::StrCat("--delays=", c.delays));
    Run(name, job, flags);
    Run(name + "-again", job, flags);
    ExpectSame(Summary(name), Summary(name + "-replay"));
    ExpectSame(Summary(name + "-again"), Summary(name));
    EXPECT_EQ(Summary(name)["mode"], absl::StrCat("delays:", c.delays));
  }
  EXPECT_GT(Summary("dropped")["dropped"], 0);
}

TEST_F(Delays, OfARecordedRunAreMetAgain) {
  const std::string job = Write("job.textproto", SmallJob());
  for (const char* const mode : {"asp", "bsp"}) {
    SCOPED_TRACE(mode);
    const std::string recorded = absl::StrCat("recorded-", mode);
    const std::vector<std::string> rule = {
        "--set=sync.stale[0]={delay_compensation{lambda:0.5}}",
        "--set=train.max_steps=100"};
    std::vector<std::string> flags = rule;
    flags.push_back(absl::StrCat("--mode=", mode));
    flags.push_back("--set=train.trace=true");
    Run(recorded, job, flags);
    flags = rule;
    flags.push_back(absl::StrCat("--delays=", Path(recorded)));
    flags.push_back("--set=train.trace=true");
    Run(absl::StrCat(mode, "-again"), job, flags);
    const nlohmann::json again = Summary(absl::StrCat(mode, "-again"));
    EXPECT_EQ(again["model_sha256"], Summary(recorded)["model_sha256"]);
    ExpectSameStaleness(Summary(recorded), again);
    // What was given is recorded, too.
    RunReplay(absl::StrCat(mode, "-replay"), job,
              Path(absl::StrCat(mode, "-again")), rule);
    EXPECT_EQ(Summary(absl::StrCat(mode, "-replay"))["model_sha256"],
              again["model_sha256"]);
  }
}

TEST_F(Delays, WhatAJobCannotFollowIsRefusedWithTheReason) {
  EXPECT_THAT(Refused("name", kWrongUsage, {"--delays=normal:3"}),
              AllOf(HasSubstr("--delays normal:3: sync.delays.given"),
                    HasSubstr("constant:S, uniform:S")));
  EXPECT_THAT(Refused("nothing", kWrongUsage,
                      {absl::StrCat("--delays=", Path("nowhere"))}),
              HasSubstr("--delays"));
  EXPECT_THAT(
      Refused("mode", kWrongUsage, {"--delays=uniform:3", "--mode=asp"}),
      HasSubstr("contradicts --mode asp"));
  EXPECT_THAT(Refused("restarts", kWrongUsage,
                      {"--delays=uniform:3", "--restart-workers=1"}),
              HasSubstr("ends when it loses a worker"));
  EXPECT_THAT(Refused("steps", kFailed,
                      {"--delays=uniform:3", "--set=train.epochs=20000"}),
              HasSubstr("at most 4000000 gradients are allowed"));
  Run("recorded", Path("job.textproto"),
      {"--mode=asp", "--set=train.trace=true", "--set=train.max_steps=5"});
  const std::string delays = absl::StrCat("--delays=", Path("recorded"));
  EXPECT_THAT(Refused("more", kFailed, {delays, "--set=train.max_steps=6"}),
              HasSubstr("has no gradient of rank 0 and clock 5"));
  EXPECT_THAT(
      Refused("workers", kFailed,
              {delays, "--set=train.max_steps=5", "--set=worker[0].count=3"}),
      HasSubstr("are those of 4 workers, the job has 3"));
  EXPECT_THAT(
      Refused("shards", kFailed,
              {delays, "--set=train.max_steps=5", "--set=limits.shard_kib=2"}),
      HasSubstr("and the job's model has"));
}

TEST_F(Delays, TheModeIsKeptAndALostWorkerEndsTheJob) {
  const std::string job = WriteWithPort("job.textproto", SmallJob());
  const std::unique_ptr<Process> run =
      StartRun("run", job,
               {"--delays=uniform:4", "--set=train.epochs=1000",
                "--set=limits.lease_ms=1000"});
  const auto status = AwaitProgress(job);
  ASSERT_TRUE(status.has_value());
  const std::unique_ptr<Process> change =
      StartTool("change", {"mode", "set", job, "asp"});
  EXPECT_EQ(change->WaitText(kJobMax), kFailed);
  EXPECT_THAT(change->Output(), HasSubstr("delays are given for a whole job"));
  SignalProcess(WorkerPid(*status, 2), SIGKILL);
  EXPECT_EQ(run->WaitText(kJobMax), kFailed);
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("worker 2 (pid"),
                    HasSubstr("the others cannot go on without its")));
}

// For programs of one's own.
constexpr char kOwnJob[] = R"(
job: "own"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 }
optimizer { momentum { learning_rate: 0.05 momentum: 0.9 } }
train { epochs: 1 }
limits { shard_kib: 1 }
)";

TEST_F(Delays, OfARecordedProgramOfOnesOwnAreMetAgain) {
  const std::string job = Write("own.textproto", kOwnJob);
  Run("recorded", job,
      {"--mode=asp", "--set=train.trace=true", "--", SLACKLINE_OWN_MODEL});
  Run("again", job,
      {absl::StrCat("--delays=", Path("recorded")), "--", SLACKLINE_OWN_MODEL});
  EXPECT_NE(Summary("again")["model_sha256"], "");
  EXPECT_EQ(Summary("again")["model_sha256"],
            Summary("recorded")["model_sha256"]);
}

TEST_F(Delays, AnAblationOverThemTakesProgramsOfOnesOwn) {
  const std::string job = Write("own.textproto", kOwnJob);
  std::vector<std::string> shas;
  for (const char* const name : {"first", "second"}) {
    const std::unique_ptr<Process> ablate = StartTool(
        name, {"ablate", job, "--over", "delays=constant:0,constant:4",
               "--seeds=1", "--no-report", absl::StrCat("--out=", Path(name)),
               "--", SLACKLINE_OWN_MODEL});
    ASSERT_EQ(ablate->WaitText(kJobMax), kEndedWell) << ablate->Output();
    const nlohmann::json experiment =
        ReadJson(Path(absl::StrCat(name, "/experiment.json")));
    for (const nlohmann::json& run : experiment["runs"]) {
      const nlohmann::json summary =
          Summary(absl::StrCat(name, "/", run["folder"].get<std::string>()));
      shas.push_back(summary["model_sha256"]);
      EXPECT_NE(shas.back(), "");
    }
  }
  ASSERT_EQ(shas.size(), 4u);
  EXPECT_NE(shas[0], shas[1]);
  EXPECT_EQ(shas[0], shas[2]);
  EXPECT_EQ(shas[1], shas[3]);
}

}  // namespace slackline::delays_test
