// Goal: what is due between two steps of a worker: which models are evaluated
// and kept, which parts of a checkpoint, where the program is said to go on,
// how long a change has taken, and which tables of an open step have come; and
// what a worker without a job does.
// Method: clocks and views by hand.
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/sync/phases.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"
#include "worker/core/change_times.h"
#include "worker/core/cut_duties.h"
#include "worker/core/evaluations.h"
#include "worker/core/lone_steps.h"
#include "worker/core/program_place.h"
#include "worker/core/step_tables.h"

namespace slackline::between_steps_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Clock kEnd = 20;

TEST(EvaluationsTest, EverySoManyClocksButNotTwiceAndNotAtTheEnd) {
  Evaluations evaluations(5);
  EXPECT_FALSE(evaluations.IsDue(0, kEnd));
  EXPECT_FALSE(evaluations.Begin(4, kEnd));
  EXPECT_TRUE(evaluations.IsDue(5, kEnd));
  EXPECT_TRUE(evaluations.Begin(5, kEnd));
  EXPECT_FALSE(evaluations.Begin(5, kEnd));
  EXPECT_FALSE(evaluations.Begin(kEnd, kEnd));
}

TEST(EvaluationsTest, AClockThatWasSkippedIsMadeUpFor) {
  Evaluations evaluations(5);
  evaluations.OnSkip(8);
  evaluations.OnSkip(9);  // The first place counts.
  EXPECT_TRUE(evaluations.has_skipped());
  EXPECT_FALSE(evaluations.IsDue(9, kEnd));
  EXPECT_TRUE(evaluations.IsDue(12, kEnd));
  evaluations.OnStep();
  EXPECT_FALSE(evaluations.has_skipped());
  EXPECT_FALSE(evaluations.IsDue(12, kEnd));
}

TEST(EvaluationsTest, TheJobBeforeHasEvaluatedWhereItStopped) {
  Evaluations evaluations(5);
  evaluations.BeginAfter(10);
  EXPECT_FALSE(evaluations.IsDue(10, kEnd));
  EXPECT_TRUE(evaluations.IsDue(15, kEnd));
}

// "0 1 evaluate 2 3 conclude", with the examples of steps as "0:0[0,4)".
std::string TasksOf(const LoneSteps::Options& options) {
  LoneSteps steps(options);
  std::vector<std::string> texts;
  while (const std::optional<LoneSteps::Task> task = steps.Next()) {
    const auto* const step = std::get_if<LoneSteps::Step>(&*task);
    if (step == nullptr) {
      texts.emplace_back(std::holds_alternative<LoneSteps::Evaluate>(*task)
                             ? "evaluate"
                             : "conclude");
      continue;
    }
    texts.push_back(absl::StrCat(step->clock));
    if (step->examples.has_value()) {
      absl::StrAppend(&texts.back(), ":", step->examples->epoch, "[",
                      step->examples->begin, ",", step->examples->end, ")");
    }
    steps.OnStep();
  }
  EXPECT_FALSE(steps.Next().has_value());
  return absl::StrJoin(texts, " ");
}

TEST(LoneStepsTest, EvaluatesEverySoOftenButNotAtTheEndWhichConcludes) {
  EXPECT_EQ(TasksOf({.steps_total = 4, .evaluate_every = 2}),
            "0 1 evaluate 2 3 conclude");
  EXPECT_EQ(TasksOf({.steps_total = 3, .evaluate_every = 2}),
            "0 1 evaluate 2 conclude");
  EXPECT_EQ(TasksOf({.steps_total = 1, .evaluate_every = 9}), "0 conclude");
}

TEST(LoneStepsTest, ElasticStepsEndWithTheirEpochAndTheJobWithItsExamples) {
  const auto tasks = [](int64_t total) {
    return TasksOf({.evaluate_every = 3,
                    .elastic = ElasticSampling{
                        .examples = 10, .batch_size = 4, .total = total}});
  };
  EXPECT_EQ(tasks(20),
            "0:0[0,4) 1:0[4,8) 2:0[8,10) evaluate 3:1[0,4) 4:1[4,8) 5:1[8,10) "
            "conclude");
  EXPECT_EQ(tasks(15),
            "0:0[0,4) 1:0[4,8) 2:0[8,10) evaluate 3:1[0,4) 4:1[4,5) conclude");
  EXPECT_EQ(tasks(10), "0:0[0,4) 1:0[4,8) 2:0[8,10) conclude");
  EXPECT_EQ(tasks(1), "0:0[0,1) conclude");
}

TEST(LoneStepsTest, AStepThatWasNotDoneComesAgainAndItsEvaluationDoesNot) {
  LoneSteps steps({.steps_total = 2, .evaluate_every = 1});
  const auto is_step = [&](Clock clock) {
    const std::optional<LoneSteps::Task> task = steps.Next();
    const auto* const step = std::get_if<LoneSteps::Step>(&*task);
    return step != nullptr && step->clock == clock;
  };
  EXPECT_FALSE(steps.is_open());
  EXPECT_TRUE(is_step(0));
  EXPECT_TRUE(steps.is_open());
  steps.OnStep();
  EXPECT_FALSE(steps.is_open());
  EXPECT_TRUE(std::holds_alternative<LoneSteps::Evaluate>(*steps.Next()));
  EXPECT_TRUE(is_step(1));
  EXPECT_TRUE(is_step(1));
  steps.OnStep();
  EXPECT_EQ(steps.clock(), 2);
  EXPECT_FALSE(steps.is_open()) << "the last step is done once";
}

class CutDutiesTest : public ::testing::Test {
 protected:
  std::shared_ptr<const View> ViewOf(int32_t cut, Clock clock, bool by_worker) {
    wire::View view = SmallView({.workers = {7, 8}});
    view.mutable_cut()->set_number(cut);
    view.mutable_cut()->set_clock(clock);
    view.mutable_cut()->set_by_worker(by_worker);
    return Must(View::Create(view));
  }
  CutDuties duties_;
};

TEST_F(CutDutiesTest, TheStateIsKeptOnceAndOnlyAtTheClock) {
  EXPECT_FALSE(duties_.KeepStateAt(*ViewOf(0, 0, false), 0).has_value());
  EXPECT_FALSE(duties_.KeepStateAt(*ViewOf(1, 6, true), 5).has_value());
  EXPECT_FALSE(duties_.KeepStateAt(*ViewOf(1, 6, true), 7).has_value());
  EXPECT_FALSE(duties_.KeepStateAt(*ViewOf(1, 6, false), 6).has_value())
      << "the servers have it";
  const auto keep = duties_.KeepStateAt(*ViewOf(1, 6, true), 6);
  ASSERT_TRUE(keep.has_value());
  EXPECT_EQ(keep->cut, 1);
  EXPECT_EQ(keep->clock, 6);
  EXPECT_FALSE(duties_.KeepStateAt(*ViewOf(1, 6, true), 6).has_value());
  EXPECT_TRUE(duties_.KeepStateAt(*ViewOf(2, 6, true), 6).has_value());
}

TEST_F(CutDutiesTest, TheProgramIsKeptAtItsLimitOrBeyond) {
  EXPECT_FALSE(duties_.KeepProgramAt(*ViewOf(1, 6, true), 7, 5).has_value());
  const auto keep = duties_.KeepProgramAt(*ViewOf(1, 6, true), 7, 8);
  ASSERT_TRUE(keep.has_value());
  EXPECT_EQ(keep->clock, 6) << "only others' steps have taken it beyond";
  EXPECT_FALSE(duties_.KeepProgramAt(*ViewOf(1, 6, true), 7, 8).has_value());
}

TEST_F(CutDutiesTest, TheProgramIsToldThatNoStepComesAfterIt) {
  const Clock end = EndOf(ViewOf(1, 6, true)->proto());
  for (const Clock clock : {end - 1, end}) {
    CutDuties duties;
    const auto keep = duties.KeepProgramAt(*ViewOf(1, 6, true), 7, clock);
    ASSERT_TRUE(keep.has_value());
    EXPECT_EQ(keep->last, clock == end);
  }
}

TEST_F(CutDutiesTest, EachWorkerHasItsOwnLimitWhereTheCutSaysSo) {
  wire::View proto = ViewOf(1, 0, false)->ToProto();
  wire::Cut::Until& until = *proto.mutable_cut()->add_until();
  until.set_incarnation(8);
  until.set_clock(4);
  const std::shared_ptr<const View> view = Must(View::Create(proto));
  EXPECT_FALSE(duties_.KeepProgramAt(*view, 7, 9).has_value())
      << "it has no gradients in the cut";
  EXPECT_FALSE(duties_.KeepProgramAt(*view, 8, 3).has_value());
  EXPECT_TRUE(duties_.KeepProgramAt(*view, 8, 4).has_value());
}

TEST_F(CutDutiesTest, WhoJoinsAfterACutHasPromisedNothing) {
  duties_.Begin(*ViewOf(1, 6, true));
  EXPECT_FALSE(duties_.KeepProgramAt(*ViewOf(1, 6, true), 7, 8).has_value());
  EXPECT_TRUE(duties_.KeepProgramAt(*ViewOf(2, 6, true), 7, 8).has_value());
}

TEST(ProgramPlaceTest, TheEndOfAnEpochIsOnePlaceForAll) {
  // Epochs of 4 steps.
  EXPECT_EQ(PlaceBetweenSteps(6, std::nullopt, 4), PlaceAfterSteps(6));
  EXPECT_EQ(PlaceBetweenSteps(6, 7, 4), PlaceAfterSteps(6));
  for (const Clock done : {5, 7, 8})
    EXPECT_EQ(PlaceBetweenSteps(done, 8, 4), PlaceAfterSteps(8));
  EXPECT_EQ(PlaceBetweenSteps(8, 9, 4), PlaceAfterSteps(8));
}

TEST(ProgramPlaceTest, PlacesAreInTheOrderInWhichAProgramComesToThem) {
  EXPECT_EQ(PlaceAfterSteps(0), kPlaceBeforeAll);
  for (Clock clock = 0; clock < 3; ++clock) {
    EXPECT_LT(PlaceAfterSteps(clock), PlaceInStep(clock));
    EXPECT_LT(PlaceInStep(clock), PlaceAfterSteps(clock + 1));
  }
}

TEST(ProgramPlaceTest, WhereItGoesOnIsToldOnce) {
  ProgramPlace place;
  EXPECT_FALSE(place.has_begun());
  EXPECT_FALSE(place.ToTell().has_value());
  place.GoOnAt(3);
  EXPECT_TRUE(place.has_begun());
  const std::optional<wire::Call> call = place.ToTell();
  ASSERT_TRUE(call.has_value());
  EXPECT_EQ(call->goes_on().place(), PlaceInStep(3));
  EXPECT_FALSE(place.ToTell().has_value());
}

TEST(ProgramPlaceTest, WhileAGatherIsOpenTheProgramStandsThere) {
  ProgramPlace place;
  place.OnGather(5);
  place.GoOnAt(3);
  place.GoOnAt(4);
  EXPECT_FALSE(place.ToTell().has_value());
  EXPECT_FALSE(place.OnCallOver(6));
  EXPECT_FALSE(place.ToTell().has_value());
  EXPECT_TRUE(place.OnCallOver(5));
  EXPECT_EQ(place.ToTell()->goes_on().place(), PlaceInStep(4));
  EXPECT_FALSE(place.OnCallOver(0)) << "no call has the number 0";
}

TEST(ChangeTimesTest, AChangeLastsFromStandingStillToTheNextStep) {
  const absl::Time start = absl::UnixEpoch();
  ChangeTimes times;
  times.Begin(start);
  times.Begin(start + absl::Seconds(1));  // It stands still all the same.
  times.OnConnecting(start + absl::Seconds(1));
  times.OnConnected(start + absl::Seconds(3));
  times.OnMoving(start + absl::Seconds(3));
  times.OnRead({.bytes = 10, .model_hash = 1});
  times.OnRead({.bytes = 20, .model_hash = 2});
  times.OnGiven(start + absl::Seconds(4));
  wire::Entered entered;
  times.Describe(start + absl::Seconds(5), &entered);
  EXPECT_EQ(entered.pause_micros(), 5'000'000);
  EXPECT_EQ(entered.connect_micros(), 2'000'000);
  EXPECT_EQ(entered.transfer_micros(), 1'000'000);
  EXPECT_EQ(entered.bytes(), 30);
  EXPECT_EQ(entered.model_hash(), 2u);
  times.End();
  wire::Entered none;
  times.Describe(start + absl::Seconds(6), &none);
  EXPECT_EQ(none.pause_micros(), 0);
  EXPECT_EQ(none.bytes(), 0);
}

TEST(StepTablesTest, AStepThatBeginsWithAllParametersMissesNone) {
  PullResult pulled;
  pulled.shards.resize(2);
  pulled.shards[1].version = 5;
  StepTables tables;
  tables.BeginWith(pulled);
  EXPECT_FALSE(tables.is_missing());
  EXPECT_TRUE(tables.HasCome(TableId{0}));
  EXPECT_THAT(tables.versions(), ElementsAre(0, 5));
}

TEST(StepTablesTest, TablesComeOneAfterTheOther) {
  wire::View proto = SmallView({.workers = {7}});
  wire::Table second = proto.table(0);
  second.set_name("bias");
  second.set_first_shard(1);
  *proto.add_table() = second;
  proto.add_owner_server(0);
  proto.add_owner_thread(0);
  const std::shared_ptr<const View> view = Must(View::Create(proto));
  StepTables tables;
  tables.BeginWithout(*view);
  EXPECT_THAT(tables.Missing(), ElementsAre(TableId{0}, TableId{1}));
  TableValues values;
  values.table = TableId{1};
  values.pieces.push_back({.shard = ShardId{1}, .version = 9, .values = {}});
  tables.Take(values);
  EXPECT_FALSE(tables.HasCome(TableId{0}));
  EXPECT_TRUE(tables.HasCome(TableId{1}));
  EXPECT_THAT(tables.Missing(), ElementsAre(TableId{0}));
  EXPECT_TRUE(tables.is_missing());
  EXPECT_THAT(tables.versions(), ElementsAre(0, 9));
  tables.Complete();
  EXPECT_FALSE(tables.is_missing());
  EXPECT_THAT(tables.Missing(), IsEmpty());
}

}  // namespace slackline::between_steps_test
