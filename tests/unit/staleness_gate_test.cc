// Goal: a pull goes when every participant has the clock that it needs, and not
// before.
// Method: examples, and long random histories against a naive twin that
// computes everything anew each time.
#include "common/sync/staleness_gate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"

namespace slackline {
namespace {

// A pull that needs every participant at `needed`.
StalenessGate::Pull PullOf(int rank, Clock needed, Clock own_clock = 0,
                           uint64_t request_id = 1) {
  return {.rank = Rank{rank},
          .incarnation = 1,
          .request_id = request_id,
          .clock = needed,
          .own_clock = own_clock,
          .needed = needed};
}

StalenessGate GateOf(int workers) {
  StalenessGate gate;
  for (int rank = 0; rank < workers; ++rank) gate.Join(Rank{rank}, 1, 0);
  return gate;
}

void AdvanceTo(StalenessGate& gate, int rank, Clock clock) {
  gate.Advance(*gate.Find(Rank{rank}, 1), clock);
}

size_t Released(StalenessGate& gate) {
  std::vector<StalenessGate::Pull> admitted;
  gate.Release(0, &admitted);
  return admitted.size();
}

TEST(StalenessGateTest, AdmitsAPullOnceTheSlowestHasTheClockThatItNeeds) {
  StalenessGate gate = GateOf(2);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 0)));
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 1)));
  AdvanceTo(gate, 1, 1);
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 1))) << "rank 0 itself is the slowest";
  AdvanceTo(gate, 0, 3);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 1)));
}

TEST(StalenessGateTest, TheClockOfAPullDoesNotHoldItBack) {
  StalenessGate gate = GateOf(2);
  StalenessGate::Pull pull = PullOf(0, std::numeric_limits<Clock>::min());
  pull.clock = 7;
  EXPECT_TRUE(gate.Admits(0, pull));
}

TEST(StalenessGateTest, AdvancingAllBringsForwardWhoIsBehindAndNobodyElse) {
  StalenessGate gate = GateOf(3);
  AdvanceTo(gate, 0, 2);
  AdvanceTo(gate, 1, 7);
  EXPECT_TRUE(gate.Park(PullOf(0, 5)));
  gate.AdvanceAll(5);
  EXPECT_EQ(gate.MinClock(), 5);
  EXPECT_EQ(gate.Find(Rank{1}, 1)->clock, 7);
  EXPECT_EQ(Released(gate), 1u);
  // Both that it brought forward are counted among the slowest.
  AdvanceTo(gate, 0, 6);
  EXPECT_EQ(gate.MinClock(), 5);
  AdvanceTo(gate, 2, 6);
  EXPECT_EQ(gate.MinClock(), 6);
}

TEST(StalenessGateTest, APullWaitsForThePullersOwnPushes) {
  StalenessGate gate = GateOf(1);
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 0, /*own_clock=*/1)));
  AdvanceTo(gate, 0, 1);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 0, 1)));
}

TEST(StalenessGateTest, APullWaitsUntilTheShardsClockIsWhereItNeedsIt) {
  StalenessGate gate = GateOf(2);
  StalenessGate::Pull pull = PullOf(0, std::numeric_limits<Clock>::min());
  pull.complete = 3;
  EXPECT_FALSE(gate.Admits(2, pull));
  EXPECT_TRUE(gate.Admits(3, pull));
  gate.Park(pull);
  std::vector<StalenessGate::Pull> admitted;
  gate.Release(2, &admitted);
  EXPECT_EQ(admitted.size(), 0u);
  gate.Release(3, &admitted);
  EXPECT_EQ(admitted.size(), 1u);
}

TEST(StalenessGateTest, ParkedPullsGoInTheOrderInWhichTheyCame) {
  StalenessGate gate = GateOf(3);
  AdvanceTo(gate, 2, 1);
  AdvanceTo(gate, 1, 1);
  EXPECT_TRUE(gate.Park(PullOf(2, 1, 1)));
  EXPECT_TRUE(gate.Park(PullOf(1, 1, 1)));
  EXPECT_EQ(Released(gate), 0u);
  AdvanceTo(gate, 0, 1);
  std::vector<StalenessGate::Pull> admitted;
  gate.Release(0, &admitted);
  ASSERT_EQ(admitted.size(), 2u);
  EXPECT_EQ(admitted[0].rank, Rank{2});
  EXPECT_EQ(admitted[1].rank, Rank{1});
}

TEST(StalenessGateTest, ARepeatedPullIsParkedOnceAndANewerOneReplacesIt) {
  StalenessGate gate = GateOf(2);
  EXPECT_TRUE(gate.Park(PullOf(0, 1, 0, /*request_id=*/5)));
  EXPECT_FALSE(gate.Park(PullOf(0, 1, 0, 5)));
  EXPECT_TRUE(gate.Park(PullOf(0, 2, 0, 6)));
  EXPECT_EQ(gate.parked_count(), 1u);
}

TEST(StalenessGateTest, ALostWorkerHoldsNobodyBackAndWaitsForNothing) {
  StalenessGate gate = GateOf(3);
  AdvanceTo(gate, 0, 1);
  AdvanceTo(gate, 2, 1);
  gate.Park(PullOf(0, 1));
  gate.Park(PullOf(1, 1));
  gate.RemoveUnless([](const StalenessGate::Participant& participant) {
    return participant.rank != Rank{1};
  });
  EXPECT_EQ(gate.MinClock(), 1);
  EXPECT_EQ(gate.parked_count(), 1u);
  EXPECT_EQ(Released(gate), 1u);
}

TEST(StalenessGateTest, AJoinerStartsWithTheSlowest) {
  StalenessGate gate = GateOf(2);
  AdvanceTo(gate, 0, 7);
  AdvanceTo(gate, 1, 5);
  EXPECT_EQ(gate.Join(Rank{2}, 9, 0).joined_at, 5);
  EXPECT_EQ(gate.MinClock(), 5);
  EXPECT_EQ(gate.Find(Rank{2}, 8), nullptr) << "another incarnation";
}

TEST(StalenessGateTest, WhenAllAreGoneTheClockStays) {
  StalenessGate gate = GateOf(1);
  AdvanceTo(gate, 0, 4);
  gate.RemoveUnless([](const auto&) { return false; });
  EXPECT_EQ(gate.MinClock(), 4);
  EXPECT_EQ(gate.Slowest(), nullptr);
  EXPECT_EQ(gate.Join(Rank{0}, 2, 0).clock, 4);
}

// A gate whose workers are at clocks 2, 4, 3.
StalenessGate UnevenGate() {
  StalenessGate gate = GateOf(3);
  AdvanceTo(gate, 0, 2);
  AdvanceTo(gate, 1, 4);
  AdvanceTo(gate, 2, 3);
  return gate;
}

TEST(StalenessGateTest, ARestoredGateAdmitsWhatTheOriginalDoes) {
  StalenessGate original = UnevenGate();
  original.Find(Rank{1}, 1)->next_seq = 9;
  StalenessGate copy;
  copy.Restore(original.MinClock(), original.participants());
  for (Clock clock = 0; clock < 8; ++clock) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(copy.Admits(0, PullOf(rank, clock, clock)),
                original.Admits(0, PullOf(rank, clock, clock)));
    }
  }
  EXPECT_EQ(copy.Slowest()->rank, Rank{0});
  EXPECT_EQ(copy.Find(Rank{1}, 1)->next_seq, 9u);
  AdvanceTo(copy, 0, 3);
  EXPECT_EQ(copy.MinClock(), 3) << "two of them are there";
  AdvanceTo(copy, 0, 5);
  EXPECT_EQ(copy.MinClock(), 3);
}

TEST(StalenessGateTest, ARestoredGateThatAllHaveLeftKeepsItsClock) {
  StalenessGate gate;
  gate.Restore(7, {});
  EXPECT_EQ(gate.MinClock(), 7);
  EXPECT_EQ(gate.Join(Rank{3}, 5, 0).joined_at, 7);
}

TEST(StalenessGateTest, WhatIsTakenAwayIsParkedNoMore) {
  StalenessGate gate = UnevenGate();
  gate.Park(PullOf(1, 4, 0, /*request_id=*/11));
  gate.Park(PullOf(2, 3, 0, /*request_id=*/12));
  const std::vector<StalenessGate::Pull> taken = gate.TakeParked();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].request_id, 11u);
  EXPECT_EQ(taken[1].request_id, 12u);
  EXPECT_EQ(gate.parked_count(), 0u);
  AdvanceTo(gate, 0, 9);
  EXPECT_EQ(Released(gate), 0u);
}

// As the header says it, with nothing kept that could be computed.
struct NaiveGate {
  struct Worker {
    Incarnation incarnation = 0;
    Clock clock = 0;
  };
  Clock last_min = 0;
  std::map<int, Worker> workers;
  std::vector<StalenessGate::Pull> parked;

  Clock Min() {
    if (!workers.empty()) {
      last_min = std::min_element(workers.begin(), workers.end(),
                                  [](const auto& a, const auto& b) {
                                    return a.second.clock < b.second.clock;
                                  })
                     ->second.clock;
    }
    return last_min;
  }
  bool Takes(const StalenessGate::Pull& pull) {
    const auto at = workers.find(static_cast<int>(pull.rank));
    return at != workers.end() && at->second.incarnation == pull.incarnation;
  }
  bool Admits(const StalenessGate::Pull& pull) {
    return Min() >= pull.needed && Takes(pull) &&
           workers[static_cast<int>(pull.rank)].clock >= pull.own_clock;
  }
};

TEST(StalenessGateTest, AgreesWithANaiveTwinInRandomHistories) {
  int admissions = 0;
  int refusals = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    NaiveGate twin;
    StalenessGate gate;
    Incarnation next_incarnation = 1;
    uint64_t next_request = 1;
    for (int step = 0; step < 200; ++step) {
      const int rank = static_cast<int>(rng.Below(5));
      const auto worker = twin.workers.find(rank);
      switch (rng.Below(7)) {
        case 0: {
          if (worker != twin.workers.end()) break;
          const Clock asked = rng.Between(0, 3);
          const Clock start = std::max(asked, twin.Min());
          twin.workers[rank] = {next_incarnation, start};
          EXPECT_EQ(gate.Join(Rank{rank}, next_incarnation, asked).clock,
                    start);
          ++next_incarnation;
          break;
        }
        case 1:
        case 2: {
          if (worker == twin.workers.end()) break;
          worker->second.clock += rng.Between(0, 2);
          gate.Advance(*gate.Find(Rank{rank}, worker->second.incarnation),
                       worker->second.clock);
          break;
        }
        case 3: {
          if (!rng.Chance(0.2)) break;
          twin.workers.erase(rank);
          std::erase_if(twin.parked, [&](const StalenessGate::Pull& pull) {
            return pull.rank == Rank{rank};
          });
          gate.RemoveUnless([&](const StalenessGate::Participant& p) {
            return p.rank != Rank{rank};
          });
          break;
        }
        case 4: {
          if (worker == twin.workers.end()) break;
          StalenessGate::Pull pull;
          pull.rank = Rank{rank};
          pull.incarnation = worker->second.incarnation;
          pull.request_id = next_request++;
          pull.clock = worker->second.clock + rng.Between(0, 2);
          pull.needed = rng.Chance(0.2) ? std::numeric_limits<Clock>::min()
                                        : pull.clock - rng.Between(0, 3);
          pull.own_clock =
              std::min(pull.clock, worker->second.clock + rng.Between(-1, 1));
          ASSERT_EQ(gate.Admits(0, pull), twin.Admits(pull));
          if (gate.Admits(0, pull)) break;
          ++refusals;
          gate.Park(pull);
          std::erase_if(twin.parked, [&](const StalenessGate::Pull& other) {
            return other.rank == pull.rank;
          });
          twin.parked.push_back(pull);
          break;
        }
        case 5: {
          if (!rng.Chance(0.2)) break;
          const Clock clock = twin.Min() + rng.Between(0, 3);
          for (auto& [other, state] : twin.workers)
            state.clock = std::max(state.clock, clock);
          gate.AdvanceAll(clock);
          break;
        }
        default: {
          std::vector<StalenessGate::Pull> admitted;
          gate.Release(0, &admitted);
          std::vector<uint64_t> released, expected;
          for (const auto& pull : admitted) released.push_back(pull.request_id);
          for (const auto& pull : twin.parked) {
            if (twin.Admits(pull)) expected.push_back(pull.request_id);
          }
          std::erase_if(twin.parked,
                        [&](const auto& pull) { return twin.Admits(pull); });
          // A replaced pull keeps its place in the gate's order.
          std::sort(released.begin(), released.end());
          std::sort(expected.begin(), expected.end());
          ASSERT_EQ(released, expected);
          admissions += static_cast<int>(released.size());
        }
      }
      ASSERT_EQ(gate.MinClock(), twin.Min());
      ASSERT_EQ(gate.participants().size(), twin.workers.size());
      ASSERT_EQ(gate.parked_count(), twin.parked.size());
      if (!twin.workers.empty()) {
        ASSERT_EQ(gate.Slowest()->clock, twin.Min());
      }
    }
  }
  EXPECT_GT(admissions, 500);
  EXPECT_GT(refusals, 500);
}

}  // namespace
}  // namespace slackline
