// What a terminal says about a job of Slurm, as squeue has it.
#include "tools/cli/launch/slurm_follower.h"

#include <map>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cli/launch/slurm_tools.h"

namespace slackline::slurm_follower_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SlurmJob Job(const std::string& state, const std::string& reason = "None",
             int wait_status = 0, int restarts = 0) {
  return {.state = state,
          .reason = reason,
          .wait_status = wait_status,
          .restarts = restarts,
          .nodes = "n[1-2]",
          .start = "N/A"};
}

class SlurmFollowerTest : public ::testing::Test {
 protected:
  SlurmFollower::Effects Look(const std::optional<SlurmJob>& job,
                              bool has_output = true) {
    now_ += absl::Seconds(5);
    return follower_.OnLook(job, has_output, now_);
  }

  absl::Time now_ = absl::UnixEpoch();
  SlurmFollower follower_{"12", now_};
};

TEST(SlurmJobTest, SqueuesLineIsReadAndAnyOtherIsRefused) {
  const auto parsed = ParseSqueue(
      "FAILED|NonZeroExitCode|19200|1|127.0.0.[2-3]|2026-11-28T09:21:00|\n");
  ASSERT_TRUE(parsed.ok() && parsed->has_value()) << parsed.status();
  EXPECT_EQ((*parsed)->state, "FAILED");
  EXPECT_EQ((*parsed)->restarts, 1);
  EXPECT_EQ((*parsed)->nodes, "127.0.0.[2-3]");
  EXPECT_EQ(ExitCodeOf(**parsed), 75);
  EXPECT_FALSE(ParseSqueue(" \n")->has_value());
  for (const char* const strange :
       {"PENDING", "|None|0|0|||", "PENDING|None|x|0|||", "PENDING|None|0|0||",
        "PENDING|None|0|0|||more", "a|b|0|0|||\nb|c|0|0|||"}) {
    EXPECT_EQ(ParseSqueue(strange).status().code(),
              absl::StatusCode::kInvalidArgument)
        << strange;
  }
}

TEST(SlurmJobTest, ItsExitCodeIsThatOfItsScript) {
  EXPECT_EQ(ExitCodeOf(Job("COMPLETED")), 0);
  EXPECT_EQ(ExitCodeOf(Job("FAILED", "", 130 << 8)), 130);
  EXPECT_EQ(ExitCodeOf(Job("CANCELLED")), 1);
  EXPECT_EQ(ExitCodeOf(Job("TIMEOUT", "", 15)), 1) << "killed by a signal";
  EXPECT_EQ(ExitCodeOf(Job("PREEMPTED", "", 75 << 8)), 75);
}

TEST(SlurmJobTest, EachStateIsOneOfTheThreeOrOnTheWay) {
  for (const char* const state :
       {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "COMPLETED",
        "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "REQUEUED",
        "CONFIGURING", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}) {
    const SlurmJob job = Job(state);
    const int kinds =
        SlurmJobWaits(job) + SlurmJobRuns(job) + SlurmJobIsOver(job);
    EXPECT_EQ(kinds, std::string(state) == "COMPLETING" ? 0 : 1) << state;
  }
}

TEST(SlurmJobTest, ItsIdAndRestartsAreInTheEnvironment) {
  const SlurmAllocation allocation =
      AllocationOf({{"SLURM_JOB_ID", "12"}, {"SLURM_RESTART_COUNT", "2"}});
  EXPECT_EQ(allocation.job_id, "12");
  EXPECT_EQ(allocation.restarts, 2);
  EXPECT_EQ(AllocationOf({{"SLURM_JOB_ID", "12"}}).restarts, 0);
  EXPECT_EQ(AllocationOf({}).job_id, "");
  EXPECT_EQ(AllocationOf({{"SLURM_JOB_ID", "--all"}}).job_id, "");
}

TEST_F(SlurmFollowerTest, ChangesAreSaidAndNothingIsSaidTwice) {
  EXPECT_THAT(Look(Job("PENDING", "Priority")).lines,
              ElementsAre("Slurm job 12 waits for its turn: Priority"));
  EXPECT_THAT(Look(Job("PENDING", "Priority")).lines, IsEmpty());
  EXPECT_THAT(Look(Job("PENDING", "Resources")).lines,
              ElementsAre(HasSubstr("Resources")));
  EXPECT_THAT(Look(Job("PENDING", "PartitionTimeLimit")).lines,
              ElementsAre(HasSubstr("it does not begin as it is")));
  EXPECT_THAT(follower_.WaitingLine(), HasSubstr("PartitionTimeLimit"));
  EXPECT_THAT(Look(Job("PENDING", "launch failed requeued held")).lines,
              ElementsAre(HasSubstr("it does not begin as it is")));
  EXPECT_THAT(Look(Job("RUNNING")).lines,
              ElementsAre("Slurm job 12 runs on n[1-2]"));
  EXPECT_EQ(follower_.WaitingLine(), "");
  EXPECT_THAT(Look(Job("RUNNING")).lines, IsEmpty());
  EXPECT_THAT(Look(Job("COMPLETING")).lines, IsEmpty());
  const SlurmFollower::Effects end = Look(Job("COMPLETED"));
  EXPECT_THAT(end.lines, IsEmpty());
  EXPECT_EQ(end.exit_code, 0);
}

TEST_F(SlurmFollowerTest, AJobThatIsPreemptedIsFollowedUntilItGoesOn) {
  Look(Job("RUNNING"));
  Look(Job("COMPLETING"));
  EXPECT_THAT(Look(Job("PENDING", "BeginTime", 0, 1)).lines,
              ElementsAre(HasSubstr("queued job 12 again"),
                          HasSubstr("BeginTime (Slurm lets")));
  EXPECT_THAT(Look(Job("RUNNING", "None", 0, 1)).lines,
              ElementsAre("Slurm job 12 runs on n[1-2]"));
  // So quickly that it was never seen to wait.
  EXPECT_THAT(Look(Job("RUNNING", "None", 0, 2)).lines,
              ElementsAre(HasSubstr("again"), HasSubstr("runs on")));
  EXPECT_EQ(Look(Job("FAILED", "NonZeroExitCode", 75 << 8, 2)).exit_code, 75);
}

TEST_F(SlurmFollowerTest, WhatSlurmHasEndedIsNamed) {
  Look(Job("RUNNING"));
  const SlurmFollower::Effects end = Look(Job("TIMEOUT", "TimeLimit"));
  EXPECT_THAT(end.lines,
              ElementsAre("Slurm has job 12 as TIMEOUT (TimeLimit)"));
  EXPECT_EQ(end.exit_code, 1);
  EXPECT_TRUE(Look(std::nullopt).over_unseen);
}

TEST_F(SlurmFollowerTest, AFolderThatIsNotSharedIsSaidOnce) {
  Look(Job("RUNNING"), /*has_output=*/false);
  now_ += absl::Seconds(31);
  EXPECT_THAT(Look(Job("RUNNING"), false).lines,
              ElementsAre(HasSubstr("is not shared with n[1-2]")));
  EXPECT_THAT(Look(Job("RUNNING"), false).lines, IsEmpty());
  EXPECT_THAT(Look(Job("FAILED", "RaisedSignal:53"), false).lines,
              ElementsAre(HasSubstr("FAILED"), HasSubstr("share; choose it")));
}

TEST_F(SlurmFollowerTest, CtrlCCancelsAJobThatWaits) {
  Look(Job("PENDING", "Priority"));
  const SlurmFollower::Effects effects = follower_.OnInterrupt(now_);
  EXPECT_TRUE(effects.cancel_waiting);
  EXPECT_EQ(effects.interrupts, 0);
  EXPECT_EQ(Look(Job("CANCELLED")).exit_code, 1);
}

TEST_F(SlurmFollowerTest, OneThatHasBegunMeanwhileIsEndedEarly) {
  Look(Job("PENDING", "Priority"));
  follower_.OnInterrupt(now_);
  EXPECT_EQ(Look(Job("RUNNING")).interrupts, 1);
  EXPECT_EQ(Look(Job("RUNNING")).interrupts, 0);
}

TEST_F(SlurmFollowerTest, CtrlCOfAJobThatRunsIsAsHereAndTheThirdKills) {
  Look(Job("RUNNING"));
  EXPECT_EQ(follower_.OnInterrupt(now_).interrupts, 1);
  EXPECT_EQ(Look(Job("RUNNING")).interrupts, 0);
  SlurmFollower::Effects second = follower_.OnInterrupt(now_);
  EXPECT_EQ(second.interrupts, 1);
  EXPECT_FALSE(second.cancel);
  EXPECT_TRUE(follower_.OnInterrupt(now_).cancel);
  EXPECT_EQ(Look(Job("FAILED", "NonZeroExitCode", 130 << 8)).exit_code, 130);
}

TEST_F(SlurmFollowerTest, SlurmIsAskedOftenOnlyAfterAChange) {
  Look(Job("PENDING", "Priority"));
  EXPECT_EQ(follower_.NextLook(now_), now_ + absl::Seconds(1));
  const absl::Time later = now_ + absl::Minutes(1);
  EXPECT_EQ(follower_.NextLook(later), later + absl::Seconds(5));
  const absl::Time much_later = now_ + absl::Hours(1);
  EXPECT_EQ(follower_.NextLook(much_later), much_later + absl::Seconds(15));
  follower_.OnEndSeen(much_later);
  EXPECT_EQ(follower_.NextLook(much_later), much_later + absl::Seconds(1));
}

}  // namespace slackline::slurm_follower_test
