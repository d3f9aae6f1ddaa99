#include "tools/cli/job/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "common/metrics/histogram.h"
#include "tests/support/modes.h"
#include "tools/cli/text.h"

namespace slackline::progress_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr absl::Time kStart = absl::UnixEpoch();

wire::StatusReply RunningStatus() {
  wire::StatusReply status;
  wire::View& view = *status.mutable_view();
  view.set_state(wire::RUNNING);
  *view.add_phase()->mutable_mode() = ModeOf("ssp:3");
  view.set_steps_total(400);
  status.set_run_seconds(20);
  const int64_t clocks[] = {103, 100};
  for (int rank = 0; rank < 2; ++rank) {
    run::WorkerStats& worker = *status.add_worker();
    worker.set_rank(rank);
    worker.set_clock(clocks[rank]);
    worker.set_examples(1000);
    worker.set_train_loss(0.25 + 0.5 * rank);
    worker.set_bytes_pushed(4000);
    worker.set_bytes_pulled(6000);
    worker.set_alive(true);
  }
  run::Histogram& staleness = *status.add_server()->mutable_missed_clocks();
  AddToHistogram(1, &staleness);
  AddToHistogram(2, &staleness);
  AddToHistogram(2, &staleness);
  return status;
}

void AddEvaluation(int64_t step, double accuracy, wire::StatusReply* status) {
  run::MetricRecord& record = *status->add_latest();
  record.set_kind(run::MetricRecord::EVAL);
  record.set_step(step);
  record.set_epoch(1);
  record.set_loss(0.125);
  record.set_accuracy(accuracy);
  record.set_seconds(21);
}

TEST(TextTest, DurationsShowHoursOnlyWhenThereAreAny) {
  EXPECT_EQ(DurationText(0), "0:00");
  EXPECT_EQ(DurationText(59.6), "1:00");
  EXPECT_EQ(DurationText(754), "12:34");
  EXPECT_EQ(DurationText(3723), "1:02:03");
  EXPECT_EQ(DurationText(-1), "?");
  EXPECT_EQ(DurationText(INFINITY), "?");
  EXPECT_EQ(DurationText(NAN), "?");
}

TEST(TextTest, CountsKeepThreeDigits) {
  EXPECT_EQ(CountText(0), "0");
  EXPECT_EQ(CountText(950), "950");
  EXPECT_EQ(CountText(999.7), "1.00 k");
  EXPECT_EQ(CountText(45230), "45.2 k");
  EXPECT_EQ(CountText(1300000), "1.30 M");
  EXPECT_EQ(CountText(0.5), "0.50");
  EXPECT_EQ(BytesText(12300), "12.3 kB");
  EXPECT_EQ(BytesText(12), "12 B");
}

TEST(TextTest, LinesThatAreTooLongEndInDots) {
  EXPECT_EQ(FitToWidth("abcdef", 6), "abcdef");
  EXPECT_EQ(FitToWidth("abcdef", 5), "ab...");
  EXPECT_EQ(FitToWidth("abcdef", 2), "ab");
  EXPECT_EQ(FitToWidth("abcdef", 0), "");
}

TEST(TextTest, TablesAlignWordsLeftAndNumbersRight) {
  EXPECT_EQ(TableText({{.title = "mode", .left = true}, {.title = "n"}},
                      {{"bsp", "1"}, {"ssp:3", "200"}}),
            "mode     n\n"
            "-----  ---\n"
            "bsp      1\n"
            "ssp:3  200\n");
}

TEST(RateMeterTest, NeedsTwoSamples) {
  RateMeter rate;
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Add(kStart, 100);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Add(kStart, 200);
  EXPECT_EQ(rate.PerSecond(), 0) << "no time has passed";
}

TEST(RateMeterTest, FollowsTheLastSeconds) {
  RateMeter rate;
  double total = 0;
  for (int i = 0; i <= 100; ++i) {
    rate.Add(kStart + absl::Milliseconds(250) * i, total);
    total += i < 50 ? 25 : 250;  // 100, then 1000 a second.
  }
  EXPECT_NEAR(rate.PerSecond(), 1000, 1);
}

TEST(RateMeterTest, TheWaitBeforeTheBeginningDoesNotCount) {
  RateMeter rate;
  rate.Add(kStart, 0);
  rate.Add(kStart + absl::Seconds(3), 0);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Add(kStart + absl::Seconds(4), 50);
  rate.Add(kStart + absl::Seconds(5), 150);
  EXPECT_DOUBLE_EQ(rate.PerSecond(), 100);
}

TEST(RateMeterTest, StartsAnewWhenTheTotalShrinks) {
  RateMeter rate;
  rate.Add(kStart, 1000);
  rate.Add(kStart + absl::Seconds(1), 100);
  EXPECT_EQ(rate.PerSecond(), 0);
  rate.Add(kStart + absl::Seconds(2), 150);
  EXPECT_DOUBLE_EQ(rate.PerSecond(), 50);
}

TEST(SecondsLeftTest, ContinuesAtTheSpeedSoFar) {
  EXPECT_DOUBLE_EQ(SecondsLeft(100, 400, 20), 60);
  EXPECT_TRUE(std::isinf(SecondsLeft(0, 400, 20)));
  EXPECT_EQ(SecondsLeft(400, 400, 20), 0);
  EXPECT_EQ(SecondsLeft(7, 0, 20), 0);
}

TEST(ProgressTest, WhileFormingSaysWhoIsMissing) {
  wire::StatusReply status;
  status.mutable_view()->set_state(wire::FORMING);
  status.add_missing("server 1");
  status.add_missing("worker 0");
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_EQ(progress.Line(), "waiting for server 1, worker 0");
  EXPECT_EQ(progress.Block(80).size(), 1);
}

TEST(ProgressTest, ShowsTheSlowestWorkerAndTheMeanLoss) {
  Progress progress;
  progress.Update(RunningStatus(), kStart);
  wire::StatusReply later = RunningStatus();
  later.mutable_worker(0)->set_examples(2000);
  later.mutable_worker(1)->set_bytes_pulled(16000);
  progress.Update(later, kStart + absl::Seconds(2));
  EXPECT_EQ(progress.Line(),
            "ssp:3  step 100/400 25 %  loss 0.5000  1:00 left  500 examples/s  "
            "staleness 2 max 2  5.00 kB/s  0:20 elapsed");
}

TEST(ProgressTest, StepsBeforeACheckpointSayNothingOfTheSpeed) {
  wire::StatusReply status = RunningStatus();
  status.mutable_view()->add_worker()->set_begins_at(50);
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), HasSubstr("step 100/400 25 %"));
  EXPECT_THAT(progress.Line(), HasSubstr("2:00 left")) << "50 in 20 s";
  EXPECT_TRUE(Progress::IsLine(progress.Line())) << progress.Line();
  EXPECT_FALSE(Progress::IsLine("epoch 1, step 100: test loss 0.6 (0:01)"));
  status.mutable_worker(1)->set_clock(50);
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), Not(HasSubstr("left")));
}

TEST(ProgressTest, BeforeTheFirstStepTheTimeLeftIsUnknown) {
  wire::StatusReply status = RunningStatus();
  status.mutable_worker(1)->set_clock(0);
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), HasSubstr("step 0/400 0 %"));
  EXPECT_THAT(progress.Line(), Not(HasSubstr("left")));
}

TEST(ProgressTest, ShowsTheLatestAccuracy) {
  wire::StatusReply status = RunningStatus();
  AddEvaluation(90, 0.9712, &status);
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), HasSubstr("  accuracy 97.12 %  "));
}

TEST(ProgressTest, AllReduceHasNoStaleness) {
  wire::StatusReply status = RunningStatus();
  *status.mutable_view()->mutable_phase(0)->mutable_mode() =
      ModeOf("allreduce");
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), StartsWith("allreduce  step 100/400"));
  EXPECT_THAT(progress.Line(), Not(HasSubstr("staleness")));
}

TEST(ProgressTest, ShowsTheModeInWhichAllWorkersTrain) {
  wire::StatusReply status = RunningStatus();
  wire::Phase& next = *status.mutable_view()->add_phase();
  *next.mutable_mode() = ModeOf("allreduce");
  next.set_from(101);
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(),
              StartsWith("ssp:3, allreduce from clock 101  step 100/400"));
  EXPECT_THAT(progress.Line(), HasSubstr("staleness"));
  status.mutable_view()->set_entered(1);
  progress.Update(status, kStart + absl::Seconds(1));
  EXPECT_THAT(progress.Line(), StartsWith("allreduce  step 100/400"));
  EXPECT_THAT(progress.Line(), Not(HasSubstr("staleness")));
}

TEST(ProgressTest, AnOpenChangeHasNoClockYet) {
  wire::StatusReply status = RunningStatus();
  *status.mutable_view()->mutable_change()->mutable_mode() = ModeOf("asp");
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), StartsWith("ssp:3, changing to asp  step 100"));
}

TEST(ProgressTest, WhenAllWorkersAreDoneItEvaluates) {
  wire::StatusReply status = RunningStatus();
  for (run::WorkerStats& worker : *status.mutable_worker()) {
    worker.set_clock(400);
    worker.set_done(true);
  }
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), HasSubstr("step 400/400 100 %"));
  EXPECT_THAT(progress.Line(), HasSubstr("evaluating"));
  EXPECT_THAT(progress.Line(), Not(HasSubstr("left")));
  EXPECT_EQ(progress.Block(80).back(), "clocks as last heard  0:done  1:done");
}

TEST(ProgressTest, AfterTheLastStepScriptsMayBeAtWork) {
  wire::StatusReply status = RunningStatus();
  for (run::WorkerStats& worker : *status.mutable_worker()) {
    worker.set_clock(400);
    worker.mutable_progress()->set_clock(400);
    worker.mutable_progress()->set_activity(run::WorkerProgress::WORKING);
  }
  EXPECT_EQ(CountTrained(RunningStatus()), 0);
  EXPECT_EQ(CountTrained(status), 2);
  status.mutable_worker(0)->set_done(true);
  EXPECT_EQ(CountTrained(status), 2);
  Progress progress;
  progress.Update(status, kStart);
  EXPECT_THAT(progress.Line(), HasSubstr("scripts at work"));
  EXPECT_THAT(progress.Line(), Not(HasSubstr("evaluating")));
}

TEST(ProgressTest, ANarrowTerminalLosesTheLeastImportantFigures) {
  Progress progress;
  progress.Update(RunningStatus(), kStart);
  for (int width = 1; width < 120; ++width) {
    for (const std::string& line : progress.Block(width)) {
      EXPECT_LE(line.size(), static_cast<size_t>(width));
    }
  }
  EXPECT_EQ(progress.Block(60).front(),
            "ssp:3  step 100/400 25 %  loss 0.5000  1:00 left");
  EXPECT_EQ(progress.Block(30).front(), "ssp:3  step 100/400 25 %");
  EXPECT_EQ(progress.Block(10).front(), "ssp:3  ...");
  EXPECT_EQ(progress.Block(80).back(), "clocks as last heard  0:103  1:100");
}

TEST(ProgressTest, EachEvaluationIsToldOnce) {
  Progress progress;
  progress.Update(RunningStatus(), kStart);
  EXPECT_THAT(progress.TakeEvaluations(), IsEmpty());
  wire::StatusReply status = RunningStatus();
  AddEvaluation(90, 0.9712, &status);
  progress.Update(status, kStart + absl::Seconds(1));
  progress.Update(status, kStart + absl::Seconds(2));
  EXPECT_THAT(progress.TakeEvaluations(),
              testing::ElementsAre("epoch 1, step 90: test loss 0.1250, test "
                                   "accuracy 97.12 % (0:21)"));
  progress.Update(status, kStart + absl::Seconds(3));
  EXPECT_THAT(progress.TakeEvaluations(), IsEmpty());
  status.clear_latest();
  AddEvaluation(180, 0.98, &status);
  progress.Update(status, kStart + absl::Seconds(4));
  EXPECT_EQ(progress.TakeEvaluations().size(), 1);
}

}  // namespace slackline::progress_test
