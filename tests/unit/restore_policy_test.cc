// Goal: a job is started again after a loss of processes, and after nothing
// else; and not for ever. Method: ends as supervisors tell them.
#include "tools/cli/run/restore_policy.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace slackline::restore_policy_test {

using End = RestorePolicy::End;

constexpr JobProcess kServer0{.worker = false, .index = 0};
constexpr JobProcess kServer1{.worker = false, .index = 1};
constexpr JobProcess kWorker0{.worker = true, .index = 0};
constexpr JobProcess kWorker1{.worker = true, .index = 1};
constexpr ExitStatus kCodeOne{.code = 1};
constexpr ExitStatus kKilled{.signal = SIGKILL};

MemberExit ExitOf(const JobProcess& member, const ExitStatus& status) {
  return {.member = member, .pid = 7, .status = status, .error_line = ""};
}
MemberExit HostExitOf(const JobProcess& member, const ExitStatus& status) {
  MemberExit exit = ExitOf(member, status);
  exit.hosted_coordinator = true;
  return exit;
}

// Of a job that ran, whose coordinator has said why it ends.
End EndBy(wire::JobEnd::Cause cause) {
  End end;
  end.cause = cause;
  end.coordinator_says = true;
  end.ran = true;
  return end;
}

bool IsLoss(const End& end) { return RestorePolicy().IsLoss(end); }

TEST(RestorePolicyTest, LostServersAreALossAndNothingThatFailsByItselfIs) {
  for (int i = wire::JobEnd::Cause_MIN; i <= wire::JobEnd::Cause_MAX; ++i) {
    if (!wire::JobEnd::Cause_IsValid(i)) continue;
    const auto cause = static_cast<wire::JobEnd::Cause>(i);
    SCOPED_TRACE(wire::JobEnd::Cause_Name(cause));
    End end = EndBy(cause);
    end.about = {"worker 0"};
    end.lost_a_process = true;  // Somebody had died before, and it went on.
    end.dead = {ExitOf(kWorker0, kKilled)};
    EXPECT_EQ(IsLoss(end), cause == wire::JobEnd::SERVER_LOST ||
                               cause == wire::JobEnd::SHARD_LOST ||
                               cause == wire::JobEnd::SERVERS_SILENT ||
                               cause == wire::JobEnd::WORKER_LOST ||
                               cause == wire::JobEnd::NO_WORKER_LEFT);
    end.asked_for = true;
    EXPECT_FALSE(IsLoss(end)) << "the user's wish counts more";
  }
}

TEST(RestorePolicyTest, AWorkerThatAJobNeedsIsLostIfASignalWasItsEnd) {
  for (const wire::JobEnd::Cause cause :
       {wire::JobEnd::NO_WORKER_LEFT, wire::JobEnd::WORKER_LOST}) {
    SCOPED_TRACE(wire::JobEnd::Cause_Name(cause));
    End end = EndBy(cause);
    end.about = {"worker 1"};
    EXPECT_FALSE(IsLoss(end));
    end.dead = {ExitOf(kWorker0, kKilled), ExitOf(kWorker1, kCodeOne)};
    EXPECT_FALSE(IsLoss(end)) << "its program has failed";
    end.dead = {ExitOf(kWorker0, kCodeOne), ExitOf(kWorker1, kKilled)};
    EXPECT_TRUE(IsLoss(end));
    end.dead = {ExitOf(kWorker1, kKilled), ExitOf(kWorker1, kCodeOne)};
    EXPECT_FALSE(IsLoss(end)) << "it was started again, and then failed";
  }
}

TEST(RestorePolicyTest, ThePlaceOfTheCoordinatorIsLostIfASignalWasItsEnd) {
  End end = EndBy(wire::JobEnd::SERVER_LOST);
  end.coordinator_says = false;
  end.about = {"server 0"};
  end.dead = {HostExitOf(kServer0, kCodeOne), ExitOf(kServer1, kKilled)};
  EXPECT_FALSE(IsLoss(end));
  end.dead = {ExitOf(kServer1, kCodeOne), HostExitOf(kServer0, kKilled)};
  EXPECT_TRUE(IsLoss(end));
  end.dead.push_back(HostExitOf(kServer1, kCodeOne));
  EXPECT_FALSE(IsLoss(end)) << "the last one counts";
}

TEST(RestorePolicyTest, AJobThatHasRunMayFormAgain) {
  End forming;
  forming.cause = wire::JobEnd::NOT_FORMED;
  forming.lost_a_process = true;
  forming.dead = {ExitOf(kWorker0, kKilled)};
  RestorePolicy policy;
  EXPECT_FALSE(policy.IsLoss(forming)) << "it may never have been able to";
  EXPECT_TRUE(policy.IsLoss(EndBy(wire::JobEnd::SERVER_LOST)));
  EXPECT_TRUE(policy.IsLoss(forming));
  forming.lost_a_process = false;
  EXPECT_FALSE(policy.IsLoss(forming)) << "nobody has died";
  forming.lost_a_process = true;
  forming.cause = wire::JobEnd::STOPPED;
  forming.coordinator_says = true;
  EXPECT_FALSE(policy.IsLoss(forming)) << "somebody has stopped it";
}

TEST(RestorePolicyTest, ThreeLossesInARowWithoutANewerCheckpointAreTheEnd) {
  RestorePolicy anew;
  EXPECT_TRUE(anew.MayGoOn(0));
  EXPECT_TRUE(anew.MayGoOn(0));
  EXPECT_FALSE(anew.MayGoOn(0));

  RestorePolicy policy;
  EXPECT_TRUE(policy.MayGoOn(0));
  EXPECT_TRUE(policy.MayGoOn(0));
  EXPECT_TRUE(policy.MayGoOn(4)) << "it came on";
  EXPECT_TRUE(policy.MayGoOn(4));
  EXPECT_TRUE(policy.MayGoOn(4));
  EXPECT_TRUE(policy.MayGoOn(5));
  EXPECT_TRUE(policy.MayGoOn(5));
  EXPECT_TRUE(policy.MayGoOn(3)) << "the newest one is damaged";
  EXPECT_FALSE(policy.MayGoOn(5));
}

}  // namespace slackline::restore_policy_test
