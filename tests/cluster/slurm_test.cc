// `slackline run --on slurm`, within an allocation of a real Slurm and outside.
//
// A job that is preempted goes on so often as --preemptions=N says; default: 2.
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "job/job_config.h"
#include "tests/cluster/slurm_daemons.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// How often the test of preemption takes a node away.
int preemptions = 2;

class SlurmTest : public JobTest {
 protected:
  void SetUp() override {
    if (!SlurmDaemons::AreInstalled()) GTEST_SKIP() << kNoSlurm;
    slurm_ = std::make_unique<SlurmDaemons>(Path("slurm"));
    // So the command lines of agents name the test.
    std::filesystem::create_symlink(SLACKLINE_BIN_DIR, Path("bin"));
  }

  // `salloc` of both nodes, with the run in it.
  std::unique_ptr<Process> StartInAllocation(const std::string& name,
                                             const std::string& train) {
    const std::string config =
        Write(absl::StrCat(name, ".textproto"),
              // Its nodes are those of the allocation.
              absl::StrCat(absl::StrReplaceAll(SmallJob({.train = train}),
                                               {{"host: \"127.0.0.1\"", ""}}),
                           "launch { bin_dir: \"", Path("bin"),
                           "\" runs_dir: \"", Path("there"), "\" }\n"));
    return std::make_unique<Process>(
        slurm_->Command({"/usr/bin/salloc", "--nodes=2", "--job-name=test",
                         absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"), "run",
                         config, "--on=slurm",
                         absl::StrCat("--out=", Path(name))}),
        Path(absl::StrCat(name, ".log")));
  }

  // `slackline run --on slurm` outside, with its folder at Path(name). Both of
  // its streams are in NAME.log.
  std::unique_ptr<Process> StartOutside(
      const std::string& name, const std::string& config,
      const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {
        absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"), "run", config,
        "--on=slurm", absl::StrCat("--out=", Path(name))};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return std::make_unique<Process>(slurm_->Command(words),
                                     Path(absl::StrCat(name, ".log")));
  }

  // A config as examples have it, whose only host is this machine.
  std::string Config(const std::string& name, const SmallJobOptions& options,
                     const std::string& more = "") {
    return Write(absl::StrCat(name, ".textproto"),
                 absl::StrCat(SmallJob(options), "launch { bin_dir: \"",
                              Path("bin"), "\" }\n", more));
  }

  // Takes a whole node, from whoever has it. The id of the job that does.
  std::string TakeNode(const std::string& node) {
    const std::string id = slurm_->Ask(
        {"/usr/bin/sbatch", "--parsable", "--partition=high",
         absl::StrCat("--nodelist=", node),
         absl::StrCat("--cpus-per-task=", SlurmDaemons::kProcessors),
         "--output=/dev/null", "--wrap=exec sleep 1000"});
    return std::string(absl::StripAsciiWhitespace(id));
  }

  // Until a job that goes on has done some steps.
  std::optional<wire::StatusReply> AwaitSteps(const std::string& cluster_file) {
    int64_t first = -1;
    return AwaitStatus(cluster_file, kJobMax,
                       [&](const wire::StatusReply& status) {
                         if (status.view().state() != wire::RUNNING ||
                             status.worker_size() == 0) {
                           return false;
                         }
                         const int64_t clock = status.worker(0).clock();
                         if (first < 0) first = clock;
                         return clock >= first + 10;
                       });
  }

  std::unique_ptr<SlurmDaemons> slurm_;
};

int CountOf(absl::string_view text, absl::string_view part) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, part);
  return static_cast<int>(parts.size()) - 1;
}

TEST_F(SlurmTest, TrainsTheSameModelAsProcessesHere) {
  const SmallJobOptions options;
  Run("here", Write("here.textproto", SmallJob(options)));
  const std::unique_ptr<Process> run = StartInAllocation("run", options.train);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("hosts: 127.0.0.2, 127.0.0.3 (slurm)"));
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))),
            ModelSha256(ReadModel(Path("here"))));
  slurm_.reset();
}

TEST_F(SlurmTest, TheDoctorLooksAtTheNodesOfTheAllocation) {
  const std::string config =
      Write("job.textproto",
            absl::StrCat(
                absl::StrReplaceAll(SmallJob(), {{"host: \"127.0.0.1\"", ""}}),
                "launch { bin_dir: \"", Path("bin"), "\" runs_dir: \"",
                Path("there"), "\" }\n"));
  Process doctor(
      slurm_->Command({"/usr/bin/salloc", "--nodes=2", "--job-name=test",
                       absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"), "doctor",
                       config, "--on=slurm", "--verbose"}),
      Path("doctor.log"));
  EXPECT_EQ(doctor.WaitText(kJobMax), kEndedWell) << doctor.Output();
  EXPECT_THAT(doctor.Output(),
              HasSubstr("ok: 127.0.0.2: network: to 127.0.0.3 at 127.0.0.3:"));
  EXPECT_THAT(doctor.Output(), HasSubstr(": 0 errors, "));
  slurm_.reset();
}

TEST_F(SlurmTest, ScancelEndsTheJobAndLeavesNothing) {
  const std::unique_ptr<Process> run =
      StartInAllocation("run", "epochs: 1000 seed: 1");
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value());
  Process cancelled(slurm_->Command({"/usr/bin/scancel", "--name=test"}),
                    Path("scancel.log"));
  EXPECT_EQ(cancelled.WaitText(kJobMax), kEndedWell) << cancelled.Output();
  const std::string end = run->WaitText(kJobMax);
  EXPECT_NE(end, kEndedWell) << run->Output();
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return ProcessesMentioning(absl::StrCat(Path("there"), "/")).empty();
  }));
  slurm_.reset();
}

TEST_F(SlurmTest, OutsideOfAnAllocationTheJobIsSubmittedAndFollowed) {
  Run("here", Write("here.textproto", SmallJob()));
  const std::string config = Config("job", {});
  const std::unique_ptr<Process> run =
      StartOutside("run", config, {"--nodes=2", "--partition=low"});
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(),
              AllOf(HasSubstr("runs on 127.0.0.[2-3]"),
                    HasSubstr("hosts: 127.0.0.2, 127.0.0.3 (slurm)"),
                    HasSubstr("\nbsp     300  ")));
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))),
            ModelSha256(ReadModel(Path("here"))));
  // It can be read, and submitted by hand.
  const std::string script = ReadText(Path("run/slurm/job.sh"));
  EXPECT_THAT(script, HasSubstr("\n#SBATCH --partition=low\n"));
  const std::unique_ptr<Process> printed = StartOutside(
      "print", config, {"--nodes=2", "--partition=low", "--print"});
  EXPECT_EQ(printed->WaitText(kJobMax), kEndedWell);
  EXPECT_THAT(
      absl::StrReplaceAll(printed->Output(), {{Path("print"), Path("run")}}),
      HasSubstr(script));
  EXPECT_FALSE(std::filesystem::exists(Path("print")));
  // The same command again knows that it has been done.
  const std::unique_ptr<Process> again =
      StartOutside("run", config, {"--nodes=1"});
  EXPECT_EQ(again->WaitText(kJobMax), kEndedWell) << again->Output();
  EXPECT_THAT(again->Output(), HasSubstr("nothing is begun"));
  slurm_.reset();
}

// Those of docs/manual/clusters.md. The last one is left to Slurm, which is
// told to end it.
TEST_F(SlurmTest, CommandsOfThePageRun) {
  int commands = 0;
  for (const absl::string_view line :
       absl::StrSplit(ReadText(absl::StrCat(SLACKLINE_SOURCE_DIR,
                                            "/docs/manual/clusters.md")),
                      '\n')) {
    if (!absl::StartsWith(line, "slackline run examples/") ||
        !absl::StrContains(line, " --on slurm")) {
      continue;
    }
    const std::string name = absl::StrCat("page-", ++commands);
    Process run(
        slurm_->Command(
            {"/bin/sh", "-c",
             absl::StrCat(
                 "exec ",
                 absl::StrReplaceAll(
                     line, {{"slackline run ",
                             absl::StrCat(SLACKLINE_BIN_DIR, "/slackline run ",
                                          SLACKLINE_SOURCE_DIR, "/")}}),
                 " --epochs 1 --out ", Path(name),
                 " --set launch.bin_dir=", Path("bin"))}),
        Path(absl::StrCat(name, ".log")));
    EXPECT_EQ(run.WaitText(kJobMax), kEndedWell) << line << run.Output();
  }
  EXPECT_EQ(commands, 3);
  EXPECT_FALSE(ReadModel(Path("page-1")).empty());
  slurm_->Ask({"/usr/bin/scancel", "--user=root"});
  slurm_.reset();
}

TEST_F(SlurmTest, CtrlCEndsTheJobWithItsModelOrCancelsOneThatWaits) {
  const std::string config = Config("job", {.train = "epochs: 1000 seed: 1"});
  std::unique_ptr<Process> run = StartOutside("run", config, {});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value());
  // Whoever asks for the same run meanwhile follows it, too.
  const std::unique_ptr<Process> detached =
      StartOutside("run", config, {"--detach"});
  EXPECT_EQ(detached->WaitText(kJobMax), kEndedWell) << detached->Output();
  EXPECT_THAT(detached->Output(), HasSubstr("already; nothing is submitted"));
  const std::unique_ptr<Process> other =
      StartOutside("run", config, {"--detach", "--epochs=7"});
  EXPECT_EQ(other->WaitText(kJobMax), kFailed) << other->Output();
  EXPECT_THAT(other->Output(), HasSubstr("submitted by another command"));
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), "exited with code 130") << run->Output();
  EXPECT_FALSE(ReadModel(Path("run")).empty());

  for (const char* const node :
       {SlurmDaemons::kFirst, SlurmDaemons::kSecond, SlurmDaemons::kThird}) {
    TakeNode(node);
  }
  run = StartOutside("waits", config, {});
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return absl::StrContains(run->Output(), "waits for its turn: ");
  })) << run->Output();
  run->Signal(SIGINT);
  EXPECT_EQ(run->WaitText(kJobMax), kFailed) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("as CANCELLED"));
  EXPECT_FALSE(std::filesystem::exists(Path("waits/cluster.textproto")));

  // While sbatch has not answered: it has submitted the job, and takes its
  // time.
  std::filesystem::create_directory(Path("slow"));
  const std::string sbatch = Write(
      "slow/sbatch", absl::StrCat("#!/bin/sh\n/usr/bin/sbatch \"$@\" && touch ",
                                  Path("submitted"), " && sleep 1\n"));
  std::filesystem::permissions(sbatch, std::filesystem::perms::owner_all);
  Process slow(
      slurm_->Command({"/usr/bin/env",
                       absl::StrCat("PATH=", Path("slow"), ":/usr/bin:/bin"),
                       absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"), "run",
                       config, "--on=slurm",
                       absl::StrCat("--out=", Path("asked-late"))}),
      Path("asked-late.log"));
  EXPECT_TRUE(WaitUntil(kJobMax, [&] {
    return std::filesystem::exists(Path("submitted"));
  })) << slow.Output();
  slow.Signal(SIGINT);
  EXPECT_EQ(slow.WaitText(kJobMax), kFailed) << slow.Output();
  EXPECT_THAT(slow.Output(), HasSubstr("as CANCELLED"));

  // Nobody else writes into the folder of a run that waits.
  const std::unique_ptr<Process> waits =
      StartOutside("here-too", config, {"--detach"});
  EXPECT_EQ(waits->WaitText(kJobMax), kEndedWell) << waits->Output();
  Process here(slurm_->Command({absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"),
                                "run", config, "--on=here",
                                absl::StrCat("--out=", Path("here-too"))}),
               Path("here.log"));
  EXPECT_EQ(here.WaitText(kJobMax), kFailed) << here.Output();
  EXPECT_THAT(here.Output(),
              HasSubstr(", which has not ended; choose another"));
  slurm_->Ask({"/usr/bin/scancel", "--user=root"});
  slurm_.reset();
}

// Each time another node is taken from it, so it goes on at other hosts.
TEST_F(SlurmTest, APreemptedJobGoesOnAndEndsWithTheSameModel) {
  const std::string train =
      absl::StrCat("epochs: ", 3 * (preemptions + 1), " seed: 1");
  Run("here", Write("here.textproto", SmallJob({.train = train})));
  const std::string config =
      Write("job.textproto",
            absl::StrCat(
                absl::StrReplaceAll(
                    SmallJob({.train = train}),
                    {{"count: 4", "count: 4 conditions { step_ms: 10 }"}}),
                "checkpoint {}\nlaunch { bin_dir: \"", Path("bin"), "\" }\n"));
  const std::unique_ptr<Process> run =
      StartOutside("run", config, {"--nodes=2", "--requeue"});
  const std::string cluster_file = Path("run/cluster.textproto");
  std::set<std::string> first_hosts;
  std::string taken_by;
  for (int i = 0; i <= preemptions; ++i) {
    SCOPED_TRACE(absl::StrCat("start ", i));
    ASSERT_TRUE(WaitUntil(kJobMax, [&] {
      return CountOf(run->Output(), ", coordinator at tcp://") == i + 1;
    })) << run->Output();
    ASSERT_TRUE(AwaitSteps(cluster_file).has_value()) << run->Output();
    if (!taken_by.empty()) slurm_->Ask({"/usr/bin/scancel", taken_by});
    const absl::StatusOr<config::ClusterConfig> now =
        LoadJobConfig(cluster_file);
    ASSERT_TRUE(now.ok()) << now.status();
    first_hosts.insert(now->server(0).host());
    if (i == preemptions) break;
    // With a grace time Slurm tells the processes on the nodes alone, and a job
    // that ends by itself then is not queued again by Slurm.
    slurm_->Ask({"/usr/bin/scontrol", "update", "partitionname=low",
                 absl::StrCat("gracetime=", i % 2 == 0 ? 0 : 60)});
    taken_by = TakeNode(now->server(0).host());
  }
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  // Not those of logs that are quoted.
  EXPECT_EQ(CountOf(run->Output(), "\nthe job is suspended: "), preemptions);
  EXPECT_EQ(CountOf(run->Output(), "goes on from step "), preemptions);
  EXPECT_EQ(CountOf(run->Output(), "Slurm has queued job"), preemptions);
  EXPECT_GE(first_hosts.size(), 2u);
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))),
            ModelSha256(ReadModel(Path("here"))))
      << run->Output();
  std::printf("preempted %d times: %d checkpoints, %d times queued again\n",
              preemptions, CountOf(run->Output(), "the job is suspended: "),
              CountOf(run->Output(), "Slurm has queued job"));
  slurm_.reset();
}

TEST_F(SlurmTest, ANodeThatDiesWithAServerCostsNothingWithReplicas) {
  const SmallJobOptions options;
  Run("here", Write("here.textproto", SmallJob(options)));
  const std::string config = Write(
      "job.textproto",
      absl::StrCat(absl::StrReplaceAll(
                       SmallJob(options),
                       {{"count: 4", "count: 4 conditions { step_ms: 10 }"}}),
                   "replicas: 1\nlaunch { bin_dir: \"", Path("bin"), "\" }\n"));
  const std::unique_ptr<Process> run =
      StartOutside("run", config,
                   {absl::StrCat("--hosts=", SlurmDaemons::kFirst, ":4,",
                                 SlurmDaemons::kSecond, ":1"),
                    "--restart-servers=0"});
  ASSERT_TRUE(AwaitProgress(Path("run/cluster.textproto")).has_value())
      << run->Output();
  slurm_->KillNode(SlurmDaemons::kSecond);
  EXPECT_EQ(run->WaitText(kJobMax), kEndedWell) << run->Output();
  EXPECT_THAT(run->Output(), HasSubstr("server 1 (pid "));
  EXPECT_EQ(ModelSha256(ReadModel(Path("run"))),
            ModelSha256(ReadModel(Path("here"))));
  slurm_.reset();
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    constexpr absl::string_view kPreemptions = "--preemptions=";
    if (word.substr(0, kPreemptions.size()) != kPreemptions ||
        !absl::SimpleAtoi(word.substr(kPreemptions.size()),
                          &slackline::preemptions)) {
      std::fprintf(stderr, "slurm_test: what is %s\n", argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
