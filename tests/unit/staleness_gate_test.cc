// Goal: a pull goes when every participant has the clock that it needs, and not
// before.
// Method: examples, and long random histories against a naive twin that
// computes everything anew each time.
#include "common/sync/staleness_gate.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gtest/gtest.h"

namespace slackline::staleness_gate_test {

Incarnation IncarnationOf(int rank) {
  return static_cast<Incarnation>(rank) + 1;
}

// A pull that needs every participant at `needed`.
StalenessGate::Pull PullOf(int rank, Clock needed, Clock own_clock = 0,
                           uint64_t request_id = 1) {
  return {.rank = Rank{rank},
          .incarnation = IncarnationOf(rank),
          .request_id = request_id,
          .clock = needed,
          .own_clock = own_clock,
          .needed = needed};
}

// A gate with the participants that it looks at. Told who has changed since it
// was asked last, if that is one.
struct Gate {
  Participants participants;
  StalenessGate gate;
  std::set<Rank> changed = {};

  Participant& Join(Rank rank, Incarnation incarnation, Clock clock) {
    return participants.Join(rank, incarnation, clock);
  }
  Participant* Find(Rank rank, Incarnation incarnation) {
    return participants.Find(rank, incarnation);
  }
  void Advance(Participant& participant, Clock clock) {
    changed.insert(participant.rank);
    participants.Advance(participant, clock);
  }
  void AdvanceAll(Clock clock) {
    for (const Participant& participant : participants)
      changed.insert(participant.rank);
    participants.AdvanceAll(clock);
  }
  void Remove(std::vector<Incarnation> incarnations) {
    participants.Remove(incarnations);
    gate.ForgetStrangers(participants);
  }
  Clock MinClock() const { return participants.MinClock(); }
  const Participant* Slowest() const { return participants.Slowest(); }
  bool Admits(Clock complete, const StalenessGate::Pull& pull) const {
    return StalenessGate::Admits(participants, complete, pull);
  }
  bool Park(const StalenessGate::Pull& pull) { return gate.Park(pull); }
  void Release(Clock complete, std::vector<StalenessGate::Pull>* admitted) {
    const bool one = changed.size() == 1;
    gate.Release(participants, complete,
                 one ? std::optional<Rank>(*changed.begin()) : std::nullopt,
                 admitted);
    changed.clear();
  }
  std::vector<StalenessGate::Pull> TakeParked() { return gate.TakeParked(); }
  size_t parked_count() const { return gate.parked_count(); }
};

// Rank r is in its incarnation r + 1.
Gate GateOf(int workers) {
  Gate gate;
  for (int rank = 0; rank < workers; ++rank)
    gate.Join(Rank{rank}, IncarnationOf(rank), 0);
  return gate;
}

void AdvanceTo(Gate& gate, int rank, Clock clock) {
  gate.Advance(*gate.Find(Rank{rank}, IncarnationOf(rank)), clock);
}

size_t Released(Gate& gate) {
  std::vector<StalenessGate::Pull> admitted;
  gate.Release(0, &admitted);
  return admitted.size();
}

TEST(StalenessGateTest, AdmitsAPullOnceTheSlowestHasTheClockThatItNeeds) {
  Gate gate = GateOf(2);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 0)));
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 1)));
  AdvanceTo(gate, 1, 1);
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 1))) << "rank 0 itself is the slowest";
  AdvanceTo(gate, 0, 3);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 1)));
}

TEST(StalenessGateTest, TheClockOfAPullDoesNotHoldItBack) {
  Gate gate = GateOf(2);
  StalenessGate::Pull pull = PullOf(0, std::numeric_limits<Clock>::min());
  pull.clock = 7;
  EXPECT_TRUE(gate.Admits(0, pull));
}

TEST(StalenessGateTest, AdvancingAllBringsForwardWhoIsBehindAndNobodyElse) {
  Gate gate = GateOf(3);
  AdvanceTo(gate, 0, 2);
  AdvanceTo(gate, 1, 7);
  EXPECT_TRUE(gate.Park(PullOf(0, 5)));
  gate.AdvanceAll(5);
  EXPECT_EQ(gate.MinClock(), 5);
  EXPECT_EQ(gate.Find(Rank{1}, 2)->clock, 7);
  EXPECT_EQ(Released(gate), 1u);
  // Both that it brought forward are counted among the slowest.
  AdvanceTo(gate, 0, 6);
  EXPECT_EQ(gate.MinClock(), 5);
  AdvanceTo(gate, 2, 6);
  EXPECT_EQ(gate.MinClock(), 6);
}

TEST(StalenessGateTest, APullWaitsForThePullersOwnPushes) {
  Gate gate = GateOf(1);
  EXPECT_FALSE(gate.Admits(0, PullOf(0, 0, /*own_clock=*/1)));
  AdvanceTo(gate, 0, 1);
  EXPECT_TRUE(gate.Admits(0, PullOf(0, 0, 1)));
}

TEST(StalenessGateTest, APullWaitsUntilTheShardsClockIsWhereItNeedsIt) {
  Gate gate = GateOf(2);
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
  Gate gate = GateOf(3);
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
  Gate gate = GateOf(2);
  EXPECT_TRUE(gate.Park(PullOf(0, 1, 0, /*request_id=*/5)));
  EXPECT_FALSE(gate.Park(PullOf(0, 1, 0, 5)));
  EXPECT_TRUE(gate.Park(PullOf(0, 2, 0, 6)));
  EXPECT_EQ(gate.parked_count(), 1u);
}

TEST(StalenessGateTest, ALostWorkerHoldsNobodyBackAndWaitsForNothing) {
  Gate gate = GateOf(3);
  AdvanceTo(gate, 0, 1);
  AdvanceTo(gate, 2, 1);
  gate.Park(PullOf(0, 1));
  gate.Park(PullOf(1, 1));
  gate.Remove({2});
  EXPECT_EQ(gate.MinClock(), 1);
  EXPECT_EQ(gate.parked_count(), 1u);
  EXPECT_EQ(Released(gate), 1u);
}

TEST(StalenessGateTest, AJoinerStartsWithTheSlowest) {
  Gate gate = GateOf(2);
  AdvanceTo(gate, 0, 7);
  AdvanceTo(gate, 1, 5);
  EXPECT_EQ(gate.Join(Rank{2}, 9, 0).joined_at, 5);
  EXPECT_EQ(gate.MinClock(), 5);
  EXPECT_EQ(gate.Find(Rank{2}, 8), nullptr) << "another incarnation";
}

TEST(StalenessGateTest, WhenAllAreGoneTheClockStays) {
  Gate gate = GateOf(1);
  AdvanceTo(gate, 0, 4);
  gate.Remove({1});
  EXPECT_EQ(gate.MinClock(), 4);
  EXPECT_EQ(gate.Slowest(), nullptr);
  EXPECT_EQ(gate.Join(Rank{0}, 2, 0).clock, 4);
}

// A gate whose workers are at clocks 2, 4, 3.
Gate UnevenGate() {
  Gate gate = GateOf(3);
  AdvanceTo(gate, 0, 2);
  AdvanceTo(gate, 1, 4);
  AdvanceTo(gate, 2, 3);
  return gate;
}

TEST(StalenessGateTest, ARestoredGateAdmitsWhatTheOriginalDoes) {
  Gate original = UnevenGate();
  original.Find(Rank{1}, 2)->next_seq = 9;
  Gate copy;
  copy.participants = Participants(
      original.MinClock(),
      {original.participants.begin(), original.participants.end()});
  for (Clock clock = 0; clock < 8; ++clock) {
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_EQ(copy.Admits(0, PullOf(rank, clock, clock)),
                original.Admits(0, PullOf(rank, clock, clock)));
    }
  }
  EXPECT_EQ(copy.Slowest()->rank, Rank{0});
  EXPECT_EQ(copy.Find(Rank{1}, 2)->next_seq, 9u);
  AdvanceTo(copy, 0, 3);
  EXPECT_EQ(copy.MinClock(), 3) << "two of them are there";
  AdvanceTo(copy, 0, 5);
  EXPECT_EQ(copy.MinClock(), 3);
}

TEST(StalenessGateTest, ARestoredGateThatAllHaveLeftKeepsItsClock) {
  Gate gate;
  gate.participants = Participants(7, {});
  EXPECT_EQ(gate.MinClock(), 7);
  EXPECT_EQ(gate.Join(Rank{3}, 5, 0).joined_at, 7);
}

TEST(StalenessGateTest, WhatIsTakenAwayIsParkedNoMore) {
  Gate gate = UnevenGate();
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
  Clock complete = 0;
  std::map<int, Worker> workers;
  std::vector<StalenessGate::Pull> parked;  // In parking order.

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
  Clock Max() {
    Clock largest = Min();
    for (const auto& [rank, worker] : workers)
      largest = std::max(largest, worker.clock);
    return largest;
  }
  bool Takes(const StalenessGate::Pull& pull) {
    const auto at = workers.find(static_cast<int>(pull.rank));
    return at != workers.end() && at->second.incarnation == pull.incarnation;
  }
  bool Admits(const StalenessGate::Pull& pull) {
    return Min() >= pull.needed && complete >= pull.complete && Takes(pull) &&
           workers[static_cast<int>(pull.rank)].clock >= pull.own_clock;
  }
  void Park(const StalenessGate::Pull& pull) {
    for (StalenessGate::Pull& other : parked) {
      if (other.rank != pull.rank) continue;
      other = pull;
      return;
    }
    parked.push_back(pull);
  }
};

TEST(StalenessGateTest, AgreesWithANaiveTwinInRandomHistories) {
  int admissions = 0;
  int together = 0;  // Admitted with others.
  int replaced = 0;
  int by_own_push = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    NaiveGate twin;
    Gate gate;
    Incarnation next_incarnation = 1;
    uint64_t next_request = 1;
    for (int step = 0; step < 300; ++step) {
      const int rank = static_cast<int>(rng.Below(6));
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
          if (!rng.Chance(0.1)) break;
          if (worker != twin.workers.end())
            gate.Remove({worker->second.incarnation});
          twin.workers.erase(rank);
          std::erase_if(twin.parked, [&](const StalenessGate::Pull& pull) {
            return pull.rank == Rank{rank};
          });
          break;
        }
        case 4:
        case 5: {
          if (worker == twin.workers.end()) break;
          StalenessGate::Pull pull;
          pull.rank = Rank{rank};
          pull.incarnation = worker->second.incarnation;
          pull.request_id = next_request++;
          pull.clock = worker->second.clock + rng.Between(0, 2);
          pull.needed = rng.Chance(0.3) ? std::numeric_limits<Clock>::min()
                                        : pull.clock - rng.Between(0, 3);
          if (rng.Chance(0.3)) pull.complete = pull.clock - rng.Between(0, 1);
          pull.own_clock =
              std::min(pull.clock, worker->second.clock + rng.Between(-1, 1));
          ASSERT_EQ(gate.Admits(twin.complete, pull), twin.Admits(pull));
          if (gate.Admits(twin.complete, pull)) break;
          gate.Park(pull);
          const size_t before = twin.parked.size();
          twin.Park(pull);
          replaced += twin.parked.size() == before;
          break;
        }
        default: {
          if (!rng.Chance(0.2)) break;
          if (rng.Chance(0.5)) {
            ++twin.complete;
            break;
          }
          const Clock clock = twin.Min() + rng.Between(0, 3);
          for (auto& [other, state] : twin.workers)
            state.clock = std::max(state.clock, clock);
          gate.AdvanceAll(clock);
        }
      }
      // As a shard does it, after each change; now and then after several.
      if (rng.Chance(0.8)) {
        const bool one = gate.changed.size() == 1;
        std::vector<StalenessGate::Pull> admitted;
        gate.Release(twin.complete, &admitted);
        std::vector<uint64_t> released, expected;
        for (const auto& pull : admitted) {
          released.push_back(pull.request_id);
          by_own_push += one && pull.needed <= 0 && pull.complete == 0;
        }
        for (const auto& pull : twin.parked) {
          if (twin.Admits(pull)) expected.push_back(pull.request_id);
        }
        std::erase_if(twin.parked,
                      [&](const auto& pull) { return twin.Admits(pull); });
        ASSERT_EQ(released, expected);
        admissions += static_cast<int>(released.size());
        together += released.size() > 1;
      }
      ASSERT_EQ(gate.MinClock(), twin.Min());
      ASSERT_EQ(gate.participants.MaxClock(), twin.Max());
      ASSERT_EQ(gate.participants.size(), twin.workers.size());
      ASSERT_EQ(gate.parked_count(), twin.parked.size());
      if (twin.workers.empty()) {
        ASSERT_EQ(gate.Slowest(), nullptr);
        continue;
      }
      const auto slowest = std::find_if(
          twin.workers.begin(), twin.workers.end(),
          [&](const auto& entry) { return entry.second.clock == twin.Min(); });
      ASSERT_EQ(gate.Slowest()->rank, Rank{slowest->first});
      ASSERT_EQ(gate.Slowest()->clock, twin.Min());
    }
  }
  EXPECT_GT(admissions, 2000);
  EXPECT_GT(together, 200);
  EXPECT_GT(replaced, 500);
  EXPECT_GT(by_own_push, 200);
}

}  // namespace slackline::staleness_gate_test
