// Goal: a job with checkpoints whose time is over takes one, ends with exit
// code 75, and goes on to the same bits, whichever of its processes is told;
// told twice it ends at once, and without a checkpoint block as ever. A server
// whose shards others can take leaves instead, and the job goes on. Method:
// SIGTERM to the real programs in the midst of a small job.
#include <signal.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline::suspend_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSuspended[] = "exited with code 75";
constexpr int64_t kSteps = 300;
constexpr absl::Duration kStopMax = absl::Seconds(20);

class Suspend : public JobTest {
 protected:
  static std::string SomeJob() {
    return SmallJob({.workers = 2,
                     .train = "epochs: 1.5 seed: 1 eval_every_epochs: 0.5",
                     .lease_ms = 2000});
  }
  // Without that nobody asks for a checkpoint.
  static std::string WithBlock(const std::string& job) {
    return absl::StrCat("checkpoint { }\n", job);
  }
  std::string Job() const {
    return Write("job.textproto", WithBlock(SomeJob()));
  }
  // A run in whose midst the test is.
  std::unique_ptr<Process> StartInMidst(const std::string& name,
                                        const std::string& config,
                                        std::vector<std::string> flags = {}) {
    flags.push_back("--set=worker[0].conditions.step_ms=10");
    std::unique_ptr<Process> run = StartRun(name, config, flags);
    status_ = AwaitProgress(Path(name + "/cluster.textproto"));
    EXPECT_TRUE(status_.has_value()) << run->Output();
    return run;
  }
  nlohmann::json SummaryOf(const std::string& name) const {
    return ReadJson(Path(name + "/summary.json"));
  }
  int CheckpointsOf(const std::string& name) const {
    int count = 0;
    std::error_code error;
    for (fs::directory_iterator at(Path(name + "/checkpoints"), error), end;
         !error && at != end; at.increment(error)) {
      count += absl::StartsWith(at->path().filename().string(), "step-");
    }
    return count;
  }
  // The run has ended so, and its output says it.
  void ExpectSuspended(Process& run, const std::string& name,
                       const std::string& who) {
    EXPECT_EQ(run.WaitText(kJobMax), kSuspended) << run.Output();
    ExpectNoProcessLeft();
    const nlohmann::json summary = SummaryOf(name);
    EXPECT_EQ(summary["state"], "FAILED");
    EXPECT_EQ(summary["cause"], "SUSPENDED") << summary["reason"];
    EXPECT_THAT(summary["reason"].get<std::string>(),
                AllOf(HasSubstr(who), HasSubstr("--resume")));
    EXPECT_EQ(summary["checkpoints"], 1);
    EXPECT_EQ(CheckpointsOf(name), 1);
    EXPECT_THAT(run.Output(), AllOf(HasSubstr("the job is suspended: "),
                                    HasSubstr("to go on: slackline run")));
  }
  static void ExpectNoDeaths(const Process& run) {
    EXPECT_THAT(run.Output(), Not(HasSubstr("the end of")));
  }
  // Goes on from it, and has the bits of the run `undisturbed`.
  void ExpectGoesOn(const std::string& name) {
    Run(name + "-more", Job(), {"--resume=" + Path(name), "--mode=bsp"});
    const nlohmann::json summary = SummaryOf(name + "-more");
    EXPECT_EQ(summary["steps"], kSteps);
    EXPECT_EQ(summary["model_sha256"],
              SummaryOf("undisturbed")["model_sha256"]);
  }

  std::optional<wire::StatusReply> status_;
};

TEST_F(Suspend, WhicheverProcessIsToldTheJobGoesOnToTheSameBits) {
  Run("undisturbed", Job(), {"--mode=bsp"});
  struct Case {
    std::string name;
    std::string who;
    bool run, worker, server, all;
  };
  const std::vector<Case> cases = {
      {"run", "slackline run was interrupted", true, false, false, false},
      {"worker", "worker 1 was interrupted", false, true, false, false},
      {"server", "server 0 was interrupted", false, false, true, false},
      {"everybody", "was interrupted by SIGTERM", true, true, true, true},
  };
  for (const Case& told : cases) {
    SCOPED_TRACE(told.name);
    const std::unique_ptr<Process> run =
        StartInMidst(told.name, Job(), {"--mode=bsp"});
    ASSERT_TRUE(status_.has_value());
    if (told.run) run->Signal(SIGTERM);
    if (told.worker) SignalProcess(WorkerPid(*status_, 1), SIGTERM);
    if (told.server) SignalProcess(ServerPid(*status_, 0), SIGTERM);
    if (told.all) {
      SignalProcess(WorkerPid(*status_, 0), SIGTERM);
      SignalProcess(ServerPid(*status_, 1), SIGTERM);
    }
    ExpectSuspended(*run, told.name, told.who);
    ExpectNoDeaths(*run);
    if (HasFailure()) return;
    ExpectGoesOn(told.name);
  }
}

TEST_F(Suspend, AServerWhoseShardsOthersCanTakeLeavesAndTheJobGoesOn) {
  Run("undisturbed", Job(), {"--mode=bsp"});
  const std::unique_ptr<Process> run =
      StartInMidst("run", Job(), {"--mode=bsp"});
  ASSERT_TRUE(status_.has_value());
  SignalProcess(ServerPid(*status_, 1), SIGTERM);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  ExpectNoProcessLeft();
  ExpectNoDeaths(*run);
  const nlohmann::json summary = SummaryOf("run");
  EXPECT_EQ(summary["state"], "FINISHED");
  EXPECT_EQ(summary["model_sha256"], SummaryOf("undisturbed")["model_sha256"]);
  EXPECT_EQ(CheckpointsOf("run"), 0);
  EXPECT_THAT(ReadText(Path("run/logs/server-1.log")),
              AllOf(HasSubstr("SIGTERM: other servers are to take its shards"),
                    HasSubstr("has no shards and leaves the job")));
}

// As when the ssh session ends: the terminal and the shell each send one.
TEST_F(Suspend, AHangupCountsAsOneSigterm) {
  const std::unique_ptr<Process> run =
      StartInMidst("hangup", Job(), {"--mode=bsp"});
  ASSERT_TRUE(status_.has_value());
  run->Signal(SIGHUP);
  run->Signal(SIGHUP);
  ExpectSuspended(*run, "hangup", "slackline run was interrupted");
  ExpectNoDeaths(*run);
}

TEST_F(Suspend, EveryProcessEndsWithItsExitCode) {
  const std::string cluster =
      WriteWithPort("job.textproto", WithBlock(SmallJob()));
  const std::vector<std::string> flags = {
      "--set=train.epochs=1000", "--set=worker[0].conditions.step_ms=10"};
  std::vector<std::unique_ptr<Process>> members =
      StartSmallJobByHand(cluster, "out", flags);
  ASSERT_TRUE(AwaitProgress(cluster).has_value());
  members.back()->Signal(SIGTERM);
  for (const auto& member : members)
    EXPECT_EQ(member->WaitText(kJobMax), kSuspended) << member->Output();
  EXPECT_THAT(members.back()->Output(),
              HasSubstr("was interrupted by SIGTERM: a checkpoint is to be "
                        "taken, then the job ends; a second signal ends this "
                        "process at once"));
  EXPECT_EQ(SummaryOf("out")["cause"], "SUSPENDED");
}

TEST_F(Suspend, InEveryModeThereIsACheckpoint) {
  for (const char* const mode : {"asp", "allreduce"}) {
    SCOPED_TRACE(mode);
    const std::unique_ptr<Process> run =
        StartInMidst(mode, Job(), {absl::StrCat("--mode=", mode)});
    run->Signal(SIGTERM);
    ExpectSuspended(*run, mode, "slackline run was interrupted by SIGTERM");
    Run(absl::StrCat(mode, "-more"), Job(),
        {"--resume=" + Path(mode), absl::StrCat("--mode=", mode)});
  }
}

TEST_F(Suspend, AUserAsksForItAndIsToldWhereItIs) {
  const std::unique_ptr<Process> run = StartInMidst("run", Job());
  const std::unique_ptr<Process> stop = StartTool(
      "stop",
      {"stop", Path("run"), "--checkpoint", "--reason=I need the node"});
  EXPECT_EQ(stop->WaitText(kJobMax), kEndedWell) << stop->Output();
  EXPECT_THAT(stop->Output(),
              AllOf(HasSubstr("takes a checkpoint, then it ends"),
                    HasSubstr("has ended: I need the node; step "),
                    HasSubstr(Path("run/checkpoints/step-"))));
  ExpectSuspended(*run, "run", "I need the node");
  const std::unique_ptr<Process> status =
      StartTool("status", {"status", Path("run")});
  EXPECT_EQ(status->WaitText(kJobMax), kSuspended);
  EXPECT_THAT(status->Output(), HasSubstr("suspended: I need the node"));
}

TEST_F(Suspend, ASecondOneEndsItAtOnce) {
  const std::unique_ptr<Process> run =
      StartInMidst("run", Job(), {"--epochs=1000"});
  ASSERT_TRUE(status_.has_value());
  // Its worker cannot come to the checkpoint's step.
  SignalProcess(WorkerPid(*status_, 1), SIGSTOP);
  run->Signal(SIGTERM);
  ASSERT_TRUE(WaitUntil(kStopMax, [&] {
    return absl::StrContains(run->Output(), "SIGTERM: taking a checkpoint");
  })) << run->Output();
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_EQ(SummaryOf("run")["cause"], "STOPPED");
  EXPECT_EQ(CheckpointsOf("run"), 0);
  // The end fits what was asked for: nobody is at fault, and what is typed next
  // is there.
  const std::string next =
      absl::StrCat("slackline run ", Path("run/cluster.textproto"), " --out ",
                   Path("run"), " --new-run");
  const std::string why =
      "stopped by a second SIGTERM before its checkpoint was there";
  EXPECT_THAT(
      run->Output(),
      AllOf(HasSubstr("SIGTERM again: stopping the job without a checkpoint"),
            HasSubstr(absl::StrCat("/logs): ", why, "\nwhat ", Path("run"),
                                   " has: no model; records in metrics.jsonl "
                                   "up to step ")),
            EndsWith(absl::StrCat("\nit has no checkpoint of its own; to begin "
                                  "again: ",
                                  next, "\n"))));
  EXPECT_THAT(
      ReadText(Path("run/failure.txt")),
      AllOf(HasSubstr(absl::StrCat("STOPPED: ", why, "\n")),
            HasSubstr("who:        no process is known to be at fault\n"),
            HasSubstr("What to do: somebody has stopped the job: nothing is to "
                      "be mended\n"),
            HasSubstr(next), Not(HasSubstr("The end of"))));
}

// Even the third one, which kills, leaves what it has.
TEST_F(Suspend, AfterMoreSignalsItGoesOnFromAnEarlierCheckpoint) {
  const std::unique_ptr<Process> run = StartInMidst(
      "run", Job(), {"--epochs=1000", "--set=checkpoint.every_steps=20"});
  ASSERT_TRUE(status_.has_value());
  ASSERT_TRUE(WaitUntil(kStopMax, [&] { return CheckpointsOf("run") > 0; }))
      << run->Output();
  SignalProcess(WorkerPid(*status_, 1), SIGSTOP);
  for (const char* const said :
       {"SIGTERM: taking a checkpoint", "SIGTERM again: stopping the job",
        "interrupted again: killing all"}) {
    run->Signal(SIGTERM);
    ASSERT_TRUE(WaitUntil(
        kStopMax, [&] { return absl::StrContains(run->Output(), said); }))
        << said << run->Output();
  }
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(),
              EndsWith(absl::StrCat(
                  "\nto go on from its last checkpoint: slackline "
                  "run ",
                  Path("run/cluster.textproto"), " --resume ",
                  Path("run/checkpoints"), " --out ", Path("run"), "\n")));
  EXPECT_THAT(ReadText(Path("run/failure.txt")),
              HasSubstr("What to do: somebody has stopped the job: nothing is "
                        "to be mended\n"));
}

TEST_F(Suspend, AWorkerThatIsToldTwiceLeavesAtOnce) {
  const std::unique_ptr<Process> run =
      StartInMidst("run", Job(), {"--epochs=1000"});
  ASSERT_TRUE(status_.has_value());
  SignalProcess(WorkerPid(*status_, 0), SIGSTOP);
  const pid_t pid = WorkerPid(*status_, 1);
  const std::string log = Path("run/logs/worker-1.log");
  SignalProcess(pid, SIGTERM);
  ASSERT_TRUE(WaitUntil(kStopMax, [&] {
    return absl::StrContains(ReadText(log), "a checkpoint is to be taken");
  })) << ReadText(log);
  SignalProcess(pid, SIGTERM);
  EXPECT_TRUE(WaitUntil(kStopMax, [&] {
    return absl::StrContains(run->Output(), "worker 1");
  })) << run->Output();
  EXPECT_THAT(ReadText(log), HasSubstr("error: worker 1 was interrupted"));
  SignalProcess(WorkerPid(*status_, 0), SIGCONT);
  ExpectSuspended(*run, "run", "worker 1 was interrupted by SIGTERM");
}

TEST_F(Suspend, AJobThatIsAboutToFinishDoesAndThatIsSuccess) {
  const std::unique_ptr<Process> run = StartRun(
      "run", Job(),
      {"--set=train.max_steps=12", "--set=worker[0].conditions.step_ms=500"});
  const auto status = AwaitStatus(Path("run/cluster.textproto"), kJobMax,
                                  [](const wire::StatusReply& reply) {
                                    return reply.worker_size() == 2 &&
                                           reply.worker(0).clock() >= 9 &&
                                           reply.worker(1).clock() >= 9;
                                  });
  ASSERT_TRUE(status.has_value()) << run->Output();
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("SIGTERM: "));
  EXPECT_EQ(SummaryOf("run")["state"], "FINISHED");
}

TEST_F(Suspend, BeforeItRunsAJobIsStillWhereItBegan) {
  Run("first", Job(),
      {"--set=checkpoint.every_steps=20",
       "--set=worker[0].conditions.step_ms=10"});
  for (const bool resumes : {true, false}) {
    SCOPED_TRACE(resumes);
    const std::string name = resumes ? "resumed" : "anew";
    // Its workers never come.
    std::vector<std::string> flags = {"--set=worker[0].command=sleep 600"};
    if (resumes) flags.push_back("--resume=" + Path("first"));
    const std::unique_ptr<Process> run = StartRun(name, Job(), flags);
    ASSERT_TRUE(WaitUntil(kStopMax, [&] {
      return absl::StrContains(run->Output(), "\nfolder: ");
    })) << run->Output();
    run->Signal(SIGTERM);
    EXPECT_EQ(run->WaitText(kJobMax), resumes ? kSuspended : kFailed)
        << run->Output();
    ExpectNoProcessLeft();
    EXPECT_EQ(SummaryOf(name)["cause"], resumes ? "SUSPENDED" : "STOPPED");
    if (!resumes) continue;
    EXPECT_GT(SummaryOf(name)["resumed_from"]["clock"], 0);
    // Its own folder has no records of the run that took the checkpoint.
    EXPECT_THAT(run->Output(),
                AllOf(HasSubstr("--resume " + Path("first/checkpoints/step-")),
                      Not(HasSubstr("--out"))));
  }
}

TEST_F(Suspend, WithoutABlockItEndsAtOnceAsEver) {
  const std::unique_ptr<Process> run = StartInMidst(
      "run", Write("plain.textproto", SomeJob()), {"--epochs=1000"});
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  ExpectNoProcessLeft();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("SIGTERM: stopping the job at once"),
                    HasSubstr("its config has no checkpoint block; with "
                              "checkpoint {} it takes a checkpoint first"),
                    Not(HasSubstr("interrupted"))));
  EXPECT_EQ(SummaryOf("run")["cause"], "STOPPED");
  EXPECT_EQ(CheckpointsOf("run"), 0);
}

TEST_F(Suspend, WhereNoCheckpointCanBeItSaysWhy) {
  const std::unique_ptr<Process> run = StartInMidst(
      "run", Job(),
      {"--epochs=1000", absl::StrCat("--set=checkpoint.folder=",
                                     Write("a-file", "no folder"), "/in-it")});
  run->Signal(SIGTERM);
  EXPECT_EQ(run->WaitText(kStopMax), kFailed) << run->Output();
  EXPECT_EQ(SummaryOf("run")["cause"], "STOPPED");
  EXPECT_THAT(SummaryOf("run")["reason"].get<std::string>(),
              AllOf(HasSubstr("without a checkpoint: "),
                    HasSubstr("could not write its part"),
                    HasSubstr("there is no earlier one")));
}

// Within a job of Slurm, whose programs are stood in for: srun starts what it
// is told here, and scontrol keeps what it is asked for.
class SuspendInSlurm : public Suspend {
 protected:
  void SetUp() override {
    fs::create_directory(Path("slurm"));
    WriteProgram("srun",
                 "while [ \"${1##*/}\" != slackline ]; do shift; done\n"
                 "exec \"$@\"\n");
    WriteProgram("scontrol",
                 absl::StrCat("[ $1 = show ] && exec echo 127.0.0.2\n"
                              "echo \"$@\" >> ",
                              Path("asked"), "\n"));
    WriteProgram("squeue", "echo 'RUNNING|None|0|0|n1|N/A|'\n");
  }
  void WriteProgram(const std::string& name, const std::string& text) {
    fs::permissions(Write(absl::StrCat("slurm/", name), "#!/bin/sh\n" + text),
                    fs::perms::owner_all);
  }
  // The command of a batch script, which Slurm has started again so often. Each
  // time it asks for a new run.
  std::unique_ptr<Process> StartInJob(const std::string& name, int restarts) {
    return std::make_unique<Process>(
        std::vector<std::string>{
            "/bin/sh", "-c",
            absl::StrCat("PATH=", Path("slurm"), ":$PATH SLURM_JOB_ID=7 ",
                         "SLURM_RESTART_COUNT=", restarts, " exec ",
                         SLACKLINE_BIN_DIR, "/slackline run ", Job(),
                         " --on slurm --requeue --new-run --mode bsp ",
                         "--set worker[0].conditions.step_ms=10 --out ",
                         Path(name))},
        Path(absl::StrCat(name, ".log")));
  }
};

TEST_F(SuspendInSlurm, TheSameCommandGoesOnOrBeginsAnewWhenItIsStartedAgain) {
  Run("undisturbed", Job(), {"--mode=bsp"});
  std::unique_ptr<Process> run = StartInJob("run", 0);
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  run->Signal(SIGTERM);
  ExpectSuspended(*run, "run", "slackline run was interrupted by SIGTERM");
  EXPECT_THAT(run->Output(), HasSubstr("Slurm queues job 7 again"));
  EXPECT_EQ(ReadText(Path("asked")), "requeue 7\n");
  run = StartInJob("run", 1);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("goes on from step "));
  EXPECT_EQ(SummaryOf("run")["model_sha256"],
            SummaryOf("undisturbed")["model_sha256"]);
  // Once more it has nothing to do.
  run = StartInJob("run", 2);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("nothing is begun"));

  run = StartInJob("lost", 0);
  ASSERT_TRUE(AwaitProgress(Path("lost/cluster.textproto")).has_value());
  run->Signal(SIGKILL);
  run->WaitText(kStopMax);
  ExpectNoProcessLeft();
  run = StartInJob("lost", 1);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("the run begins anew"));
  EXPECT_EQ(SummaryOf("lost")["model_sha256"],
            SummaryOf("undisturbed")["model_sha256"]);
}

// A user who has suspended a job does not want it again at once.
TEST_F(SuspendInSlurm, AJobThatAUserSuspendsIsNotQueuedAgain) {
  const std::unique_ptr<Process> run = StartInJob("run", 0);
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value());
  const std::unique_ptr<Process> stop =
      StartTool("stop", {"stop", Path("run"), "--checkpoint", "--reason=mine"});
  EXPECT_EQ(stop->WaitText(kJobMax), kEndedWell) << stop->Output();
  ExpectSuspended(*run, "run", "mine");
  EXPECT_FALSE(fs::exists(Path("asked")));
}

}  // namespace slackline::suspend_test
