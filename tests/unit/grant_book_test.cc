// Goal: every example is given to somebody until it is done, whoever dies or
// asks twice; nobody waits for a worker that waits for it; and the job ends at
// one clock. Method: a few calls by hand, and workers that die at random. With
// the rest of the cluster: tests/sim.
#include "server/coordinator/grant_book.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::grant_book_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

wire::Elastic Sampling(int64_t examples, int64_t batch_size, int64_t total) {
  wire::Elastic elastic;
  elastic.set_examples(examples);
  elastic.set_batch_size(batch_size);
  elastic.set_total(total);
  return elastic;
}

class GrantBookTest : public ::testing::Test {
 protected:
  GrantBookTest() { book_.Start(Sampling(10, 4, 20)); }

  static GrantBook::Caller Of(int rank, uint64_t id) {
    return {.peer = {.kind = PeerId::Kind::kWorker, .index = rank},
            .call_id = id,
            .incarnation = 10u + rank};
  }
  // "0.1 epoch 0 [0, 4)" or "0.1 skip to 3", one for each answer.
  std::vector<std::string> Take() {
    std::vector<std::string> texts;
    for (const GrantBook::Answer& answer : answers_) {
      const wire::Examples& examples = answer.granted.examples();
      texts.push_back(absl::StrCat(
          answer.to.peer.index, ".", answer.to.call_id, " ",
          answer.code != wire::OK ? answer.error
          : answer.granted.has_examples()
              ? absl::StrCat("epoch ", examples.epoch(), " [", examples.begin(),
                             ", ", examples.end(), ")")
          : !answer.granted.has_skip_to()
              ? "none now"
              : absl::StrCat("skip to ", answer.granted.skip_to())));
    }
    answers_.clear();
    return texts;
  }
  struct Said {
    Clock clock = 0;
    int64_t received = 0;
    int64_t done = 0;
    bool reduced = false;
  };
  std::vector<std::string> Ask(int rank, uint64_t id, const Said& said) {
    wire::NextExamples asked;
    asked.set_clock(said.clock);
    asked.set_received(said.received);
    asked.set_done(said.done);
    asked.set_reduced(said.reduced);
    book_.Ask(Of(rank, id), asked, &answers_);
    return Take();
  }
  std::vector<std::string> Forget(int rank) {
    book_.Forget(10u + rank, &answers_);
    return Take();
  }
  std::vector<std::string> EndAt(Clock end) {
    book_.EndAt(end, &answers_);
    return Take();
  }
  // Takes all that there is, as worker 0 at clocks 0, 1, ...; the last range is
  // not done.
  void TakeAll() {
    for (int64_t i = 0; i < 6; ++i) {
      Ask(0, static_cast<uint64_t>(i) + 1,
          {.clock = i, .received = i, .done = i});
    }
  }

  GrantBook book_;
  std::vector<GrantBook::Answer> answers_;
};

TEST_F(GrantBookTest, RangesFollowEachOtherAndEndWithTheirEpoch) {
  EXPECT_THAT(Ask(0, 1, {}), ElementsAre("0.1 epoch 0 [0, 4)"));
  EXPECT_THAT(Ask(1, 1, {}), ElementsAre("1.1 epoch 0 [4, 8)"));
  EXPECT_THAT(Ask(0, 2, {.clock = 1, .received = 1, .done = 1}),
              ElementsAre("0.2 epoch 0 [8, 10)"));
  EXPECT_THAT(Ask(0, 3, {.clock = 2, .received = 2, .done = 2}),
              ElementsAre("0.3 epoch 1 [0, 4)"));
  EXPECT_EQ(book_.examples_done(), 6);
}

TEST_F(GrantBookTest, ARepeatedCallGetsTheSameAnswerAndAnOlderOneNone) {
  EXPECT_THAT(Ask(0, 1, {}), ElementsAre("0.1 epoch 0 [0, 4)"));
  EXPECT_THAT(Ask(0, 1, {}), ElementsAre("0.1 epoch 0 [0, 4)"));
  EXPECT_THAT(Ask(0, 2, {.clock = 1, .received = 1, .done = 0}),
              ElementsAre("0.2 epoch 0 [4, 8)"));
  EXPECT_THAT(Ask(0, 1, {}), IsEmpty());
}

TEST_F(GrantBookTest, WhatDidNotReachTheWorkerIsGivenOnceMore) {
  Ask(0, 1, {});
  EXPECT_THAT(Ask(0, 2, {.clock = 0, .received = 0, .done = 0}),
              ElementsAre("0.2 epoch 0 [0, 4)"));
  EXPECT_THAT(Ask(0, 3, {.clock = 1, .received = 1, .done = 1}),
              ElementsAre("0.3 epoch 0 [4, 8)"));
}

TEST_F(GrantBookTest, WhatADeadWorkerHadNotDoneIsNext) {
  Ask(0, 1, {});
  Ask(1, 1, {});
  Ask(0, 2, {.clock = 1, .received = 1, .done = 0});
  EXPECT_THAT(Forget(0), IsEmpty());
  EXPECT_EQ(book_.examples_given_again(), 6);
  EXPECT_THAT(Ask(1, 2, {.clock = 1, .received = 1, .done = 1}),
              ElementsAre("1.2 epoch 0 [0, 4)"));
  EXPECT_THAT(Ask(1, 3, {.clock = 2, .received = 2, .done = 2}),
              ElementsAre("1.3 epoch 0 [8, 10)"));
  EXPECT_THAT(Ask(1, 4, {.clock = 3, .received = 3, .done = 3}),
              ElementsAre("1.4 epoch 1 [0, 4)"));
}

TEST_F(GrantBookTest, WhoFindsNothingWaitsUntilItComesBack) {
  TakeAll();
  EXPECT_THAT(Ask(1, 1, {.clock = 9}), IsEmpty());
  EXPECT_EQ(book_.EndOf({10, 11}), std::nullopt);
  EXPECT_THAT(Forget(0), ElementsAre("1.1 epoch 1 [8, 10)"));
  EXPECT_EQ(book_.EndOf({11}), std::nullopt);
  EXPECT_THAT(Ask(1, 2, {.clock = 10, .received = 1, .done = 1}), IsEmpty());
  EXPECT_EQ(book_.EndOf({11}), 10);
  EXPECT_EQ(book_.examples_done(), 20);
}

// Else the one that trains would wait for it, in BSP and all-reduce.
TEST_F(GrantBookTest, WhoFindsNothingAndIsBehindLeavesStepsOut) {
  TakeAll();  // The step of clock 5 is under way.
  EXPECT_THAT(Ask(1, 1, {.clock = 3}), ElementsAre("1.1 skip to 6"));
  EXPECT_THAT(Ask(1, 1, {.clock = 3}), ElementsAre("1.1 skip to 6"));
  EXPECT_THAT(Ask(1, 2, {.clock = 5}), ElementsAre("1.2 skip to 6"))
      << "it may stop on its way, for a change of the mode";
  EXPECT_THAT(Ask(1, 3, {.clock = 6}), IsEmpty());
  EXPECT_EQ(book_.EndOf({10, 11}), std::nullopt);
  EXPECT_THAT(Ask(0, 7, {.clock = 6, .received = 6, .done = 6}), IsEmpty());
  EXPECT_EQ(book_.EndOf({10, 11}), 6);
}

TEST_F(GrantBookTest, AStepAtALaterClockThanWasAskedForHoldsNobodyUp) {
  TakeAll();
  EXPECT_THAT(Ask(1, 1, {.clock = 8}), IsEmpty());
  book_.OnHasExamples(Of(0, 7), 8, &answers_);
  EXPECT_THAT(Take(), ElementsAre("0.7 none now", "1.1 skip to 9"));
  book_.OnHasExamples(Of(0, 7), 8, &answers_);
  EXPECT_THAT(Take(), ElementsAre("0.7 none now"));
}

TEST_F(GrantBookTest, TheJobDoesNotEndBeforeAllAreDoneAndHaveAsked) {
  TakeAll();
  EXPECT_THAT(Ask(0, 7, {.clock = 6, .received = 6, .done = 5}),
              ElementsAre("0.7 none now"));
  EXPECT_EQ(book_.EndOf({10}), std::nullopt) << "its push is on its way";
  EXPECT_THAT(Ask(0, 8, {.clock = 6, .received = 6, .done = 6}), IsEmpty());
  EXPECT_EQ(book_.EndOf({10}), 6);
  EXPECT_EQ(book_.EndOf({10, 11}), std::nullopt) << "one has just joined";
}

TEST_F(GrantBookTest, ByAllReduceTheLastRangesAreDoneWhenAllHaveThem) {
  TakeAll();
  EXPECT_THAT(Ask(1, 1, {.clock = 5, .reduced = true}),
              ElementsAre("1.1 skip to 6"));
  EXPECT_THAT(
      Ask(0, 7, {.clock = 6, .received = 6, .done = 5, .reduced = true}),
      IsEmpty());
  EXPECT_EQ(book_.EndOf({10, 11}), std::nullopt) << "1 may have failed there";
  EXPECT_THAT(Ask(1, 2, {.clock = 6, .reduced = true}), IsEmpty());
  EXPECT_EQ(book_.EndOf({10, 11}), 6);
  EXPECT_THAT(EndAt(6), IsEmpty());
  book_.Ended();
  EXPECT_EQ(book_.examples_done(), 20);
}

TEST_F(GrantBookTest, WhoWaitsWhenTheJobIsEndedEarlyGoesToItsEnd) {
  TakeAll();
  EXPECT_THAT(Ask(1, 1, {.clock = 6, .reduced = true}), IsEmpty());
  EXPECT_THAT(EndAt(8), ElementsAre("1.1 skip to 8"));
  EXPECT_THAT(EndAt(9), IsEmpty()) << "it has an end already";
  EXPECT_THAT(Ask(2, 1, {.clock = 3, .reduced = true}),
              ElementsAre("2.1 skip to 8"));
}

TEST_F(GrantBookTest, NobodyIsGivenMoreThanItMayHaveOpen) {
  book_.Start(Sampling(1000, 1, 1000));
  for (int64_t i = 0; i < GrantBook::kOpenMax; ++i)
    Ask(0, static_cast<uint64_t>(i) + 1, {.clock = i, .received = i});
  const int64_t max = GrantBook::kOpenMax;
  EXPECT_THAT(Ask(0, 100, {.clock = max, .received = max}),
              ElementsAre("0.100 none now"));
  EXPECT_THAT(
      Ask(0, 101, {.clock = max, .received = max, .done = 1}),
      ElementsAre(absl::StrCat("0.101 epoch 0 [", max, ", ", max + 1, ")")));
}

TEST_F(GrantBookTest, NumbersThatCannotBeAreRefusedAndChangeNothing) {
  Ask(0, 1, {});
  for (const Said& said : std::vector<Said>{{.clock = -1},
                                            {.clock = kClockMax},
                                            {.received = 2},
                                            {.received = -1, .done = -1},
                                            {.received = 1, .done = 2}}) {
    const std::vector<std::string> answers = Ask(0, 5, said);
    ASSERT_EQ(answers.size(), 1u);
    EXPECT_THAT(answers[0], HasSubstr("a call for examples "));
  }
  EXPECT_THAT(Ask(0, 6, {.clock = 1, .received = 1, .done = 1}),
              ElementsAre("0.6 epoch 0 [4, 8)"));
  EXPECT_THAT(GrantBook::WhyUnfit(Sampling(0, 1, 1)), HasSubstr("examples is"));
  EXPECT_THAT(GrantBook::WhyUnfit(Sampling(1, 0, 1)), HasSubstr("batch_size"));
  EXPECT_THAT(GrantBook::WhyUnfit(Sampling(1, 1, -1)), HasSubstr("total is"));
  EXPECT_EQ(GrantBook::WhyUnfit(Sampling(1, 1, 1)), "");
}

TEST_F(GrantBookTest, WithStaticSamplingThereIsNothingToGive) {
  GrantBook book;
  book.Start(std::nullopt);
  book.Ask(Of(0, 1), wire::NextExamples(), &answers_);
  EXPECT_THAT(Take(), ElementsAre("0.1 the job's sampling is not elastic"));
  EXPECT_EQ(book.EndOf({10}), std::nullopt);
}

// Workers that compute, forget answers and die at random.
TEST(GrantBook, EveryExampleIsDoneOnceWhateverHappens) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const int64_t total = rng.Between(1, 60);
    GrantBook book;
    book.Start(Sampling(rng.Between(1, 30), rng.Between(1, 5), total));
    const int64_t examples = total;
    struct Life {
      Clock clock = 0;
      int64_t received = 0, done = 0;
      uint64_t call = 0;
      std::vector<std::pair<int64_t, int64_t>> had;  // Epoch and place.
      std::vector<std::pair<int64_t, int64_t>> sure;
    };
    std::map<Incarnation, Life> living;
    std::map<std::pair<int64_t, int64_t>, int> times;
    Incarnation next = 1;
    std::optional<Clock> end;
    for (int event = 0; event < 5000 && !end.has_value(); ++event) {
      std::vector<GrantBook::Answer> answers;
      if (living.empty() || (living.size() < 4 && rng.Chance(0.05)))
        living[next++];
      auto worker = living.begin();
      std::advance(worker, rng.Below(living.size()));
      Life& life = worker->second;
      if (event < 4000 && rng.Chance(0.03)) {
        for (const auto& place : life.sure) ++times[place];
        book.Forget(worker->first, &answers);
        living.erase(worker);
      } else {
        // What it had is done now.
        life.sure.insert(life.sure.end(), life.had.begin(), life.had.end());
        life.had.clear();
        life.done = life.received;
        wire::NextExamples asked;
        asked.set_clock(life.clock);
        asked.set_received(life.received);
        asked.set_done(life.done);
        book.Ask(
            {.peer = {}, .call_id = ++life.call, .incarnation = worker->first},
            asked, &answers);
      }
      for (const GrantBook::Answer& answer : answers) {
        if (rng.Chance(0.1)) continue;  // Is lost.
        const auto to = living.find(answer.to.incarnation);
        ASSERT_NE(to, living.end());
        if (answer.to.call_id != to->second.call) continue;
        if (!answer.granted.has_examples()) {
          to->second.clock = answer.granted.skip_to();
          continue;
        }
        ++to->second.received;
        ++to->second.clock;
        const wire::Examples& given = answer.granted.examples();
        for (int64_t at = given.begin(); at < given.end(); ++at)
          to->second.had.push_back({given.epoch(), at});
      }
      std::vector<Incarnation> all;
      for (const auto& [incarnation, life] : living) all.push_back(incarnation);
      end = book.EndOf(all);
    }
    ASSERT_TRUE(end.has_value());
    for (const auto& [incarnation, life] : living) {
      for (const auto& place : life.sure) ++times[place];
      EXPECT_EQ(life.clock, *end);
    }
    EXPECT_EQ(times.size(), static_cast<size_t>(examples));
    for (const auto& [place, count] : times) {
      ASSERT_EQ(count, 1) << "epoch " << place.first << " place "
                          << place.second;
    }
    EXPECT_EQ(book.examples_done(), examples);
  }
}

}  // namespace slackline::grant_book_test
