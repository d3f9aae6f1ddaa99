// `slackline run --on slurm` within an allocation of a real Slurm.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "tests/cluster/slurm_daemons.h"
#include "tests/support/job_test.h"
#include "tests/support/run_files.h"

namespace slackline {
namespace {

using ::testing::HasSubstr;

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

  std::unique_ptr<SlurmDaemons> slurm_;
};

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

TEST_F(SlurmTest, OutsideOfAnAllocationWithoutHostsIsRefused) {
  const std::string config =
      Write("job.textproto",
            absl::StrReplaceAll(SmallJob(), {{"host: \"127.0.0.1\"", ""}}));
  Process run(slurm_->Command({absl::StrCat(SLACKLINE_BIN_DIR, "/slackline"),
                               "run", config, "--on=slurm"}),
              Path("run.log"));
  EXPECT_EQ(run.WaitText(kJobMax), "exited with code 2") << run.Output();
  EXPECT_THAT(run.Output(), HasSubstr("run it within one, as in salloc -N2"));
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

}  // namespace
}  // namespace slackline
