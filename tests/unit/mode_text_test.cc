#include "tools/cli/job/mode_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/modes.h"

namespace slackline::mode_text_test {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

void AddPhase(absl::string_view mode, int64_t from, wire::StatusReply* status) {
  wire::Phase& phase = *status->mutable_view()->add_phase();
  *phase.mutable_mode() = ModeOf(mode);
  phase.set_from(from);
}

// A job by all-reduce whose workers are at 480 and 483, and that was BSP
// before.
wire::StatusReply MakeStatus() {
  wire::StatusReply status;
  status.mutable_view()->set_job("digits");
  status.mutable_view()->set_steps_total(1170);
  AddPhase("bsp", 0, &status);
  AddPhase("allreduce", 200, &status);
  status.mutable_view()->set_entered(1);
  for (const int clock : {483, 480}) status.add_worker()->set_clock(clock);
  run::ModeRecord& record = *status.add_mode_changed();
  record.set_seconds(12);
  record.set_from_clock(200);
  *record.mutable_from() = ModeOf("bsp");
  *record.mutable_to() = ModeOf("allreduce");
  record.set_reason("schedule");
  record.set_pause_micros(25300);
  record.set_connect_micros(20100);
  record.set_transfer_micros(4040);
  record.set_bytes(10700000);
  return status;
}

TEST(ModeOutlookTest, IsTheModeInWhichAllTrain) {
  wire::StatusReply status = MakeStatus();
  EXPECT_EQ(ModeOutlook(status), "allreduce");
  status.mutable_view()->set_entered(0);
  EXPECT_EQ(ModeOutlook(status), "bsp, allreduce from clock 200");
}

TEST(ModeOutlookTest, SaysThatAPolicyDecidesAndWhatItHasChosen) {
  wire::StatusReply status = MakeStatus();
  status.set_mode_policy("all steps take equally long");
  EXPECT_EQ(ModeOutlook(status), "allreduce (auto)");
  *status.mutable_view()->mutable_change()->mutable_mode() = ModeOf("ssp:4");
  EXPECT_EQ(ModeOutlook(status), "allreduce (auto), changing to ssp:4");
  status.mutable_view()->mutable_change()->mutable_ending();
  EXPECT_EQ(ModeOutlook(status), "allreduce (auto), ending early");
  status.mutable_view()->mutable_change()->mutable_cutting();
  EXPECT_EQ(ModeOutlook(status), "allreduce (auto)") << "it stays";
}

TEST(ModeOutlookTest, SaysThatTheJobIsToEndEarly) {
  wire::StatusReply status = MakeStatus();
  status.mutable_view()->mutable_change()->mutable_ending();
  EXPECT_EQ(ModeOutlook(status), "allreduce, ending early");
  EXPECT_THAT(ModesText(status), HasSubstr("?  the job's end"));
}

TEST(ModeOutlookTest, BeforeTheJobRunsThereIsNone) {
  EXPECT_EQ(ModeOutlook(wire::StatusReply()), "");
  wire::StatusReply odd = MakeStatus();
  odd.mutable_view()->set_entered(7);
  EXPECT_EQ(ModeOutlook(odd), "") << "no phase has this number";
}

TEST(ModesTextTest, ShowsPhasesClocksAndWhatChangesHaveCost) {
  wire::StatusReply status = MakeStatus();
  AddPhase("asp", 600, &status);
  EXPECT_EQ(ModesText(status),
            "job digits: mode allreduce, asp from clock 600; the workers have "
            "completed 480 to 483 of 1170 steps\n"
            "\n"
            "from clock  mode       state\n"
            "----------  ---------  -------\n"
            "         0  bsp        over\n"
            "       200  allreduce  now\n"
            "       600  asp        to come\n"
            "\n"
            "last changes:\n"
            "  at  clock  from  to            pause  connecting   moving    "
            "moved  reason\n"
            "----  -----  ----  ---------  --------  ----------  -------  "
            "-------  --------\n"
            "0:12    200  bsp   allreduce  25.30 ms    20.10 ms  4.04 ms  "
            "10.7 MB  schedule\n"
            "pause: the longest time that a worker stood still, connecting and "
            "moving included\n");
}

TEST(ModesTextTest, AnOpenChangeHasNoClock) {
  wire::StatusReply status = MakeStatus();
  *status.mutable_view()->mutable_change()->mutable_mode() = ModeOf("asp");
  EXPECT_THAT(ModesText(status),
              HasSubstr("         ?  asp        the workers settle its clock"));
}

TEST(ModesTextTest, ShowsWhatThePolicySees) {
  wire::StatusReply status = MakeStatus();
  EXPECT_THAT(ModesText(status), Not(HasSubstr("policy")));
  status.set_mode_policy("worker 3 takes 3.1 times the median step");
  EXPECT_THAT(
      ModesText(status),
      HasSubstr("\npolicy: worker 3 takes 3.1 times the median step\n"));
}

TEST(ModesTextTest, BeforeTheJobRunsThereIsNothingToShow) {
  wire::StatusReply status;
  status.mutable_view()->set_job("digits");
  EXPECT_EQ(ModesText(status), "job digits has no mode before it runs\n");
}

TEST(ModeChangesTableTest, ShowsTheLastOnes) {
  wire::StatusReply status = MakeStatus();
  EXPECT_THAT(ModeChangesTable(status, 5), EndsWith("schedule\n"));
  EXPECT_EQ(ModeChangesTable(status, 0), "");
  run::ModeRecord& record = *status.add_mode_changed();
  record.set_reason("asked for by a user");
  EXPECT_THAT(ModeChangesTable(status, 1), EndsWith("asked for by a user\n"));
  EXPECT_THAT(ModeChangesTable(status, 1), Not(HasSubstr("schedule")));
}

TEST(ModeChangeTextTest, TellsTheCostWhereThereWasOne) {
  run::ModeRecord record = MakeStatus().mode_changed(0);
  EXPECT_EQ(ModeChangeText(record),
            "changed from bsp to allreduce at clock 200; the workers stood "
            "still for at most 25.30 ms and moved 10.7 MB");
  record.set_bytes(0);
  EXPECT_THAT(ModeChangeText(record), EndsWith("at most 25.30 ms"));
  record.set_pause_micros(0);
  EXPECT_THAT(ModeChangeText(record), EndsWith("; no worker stood still"));
}

}  // namespace slackline::mode_text_test
