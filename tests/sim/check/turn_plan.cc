#include "tests/sim/check/turn_plan.h"

#include "absl/algorithm/container.h"

namespace slackline::sim {

const DelayTrace::Shard& TurnPlan::DelaysOf(const ShardTwin& twin) const {
  const DelayTrace& delays = scenario_.delays;
  return delays.shards[delays.any_model ? 0 : static_cast<size_t>(twin.first)];
}

size_t TurnPlan::TurnsBefore(const ShardTwin& twin, Rank rank,
                             Clock clock) const {
  const DelayTrace::Shard& delays = DelaysOf(twin);
  for (const DelayTrace::Read& read : delays.reads) {
    if (Rank{read.rank} == rank && read.clock == clock)
      return static_cast<size_t>(read.version);
  }
  return delays.updates.size();  // After the last step.
}

Clock TurnPlan::CompleteAfter(const ShardTwin& twin, size_t turns) const {
  const auto& updates = DelaysOf(twin).updates;
  for (Clock clock = scenario_.delays.first;; ++clock) {
    bool over = true;
    bool last = true;
    for (size_t turn = 0; turn < updates.size(); ++turn) {
      over = over && (turn < turns || updates[turn].clock != clock);
      last = last && updates[turn].clock < clock;
    }
    if (last || !over) return clock;
  }
}

const DelayTrace::Update* TurnPlan::ReadyTurn(const ShardTwin& twin) const {
  const auto& updates = DelaysOf(twin).updates;
  const size_t turn = twin.after_turns.size() - 1;
  if (turn == updates.size()) return nullptr;
  for (const int32_t rank : updates[turn].ranks) {
    if (twin.waiting.count({updates[turn].clock, Rank{rank}}) == 0)
      return nullptr;
  }
  return &updates[turn];
}

bool TurnPlan::HasTurn(const ShardTwin& twin, Rank rank, Clock clock) const {
  return absl::c_any_of(DelaysOf(twin).updates, [&](const auto& update) {
    return update.clock == clock &&
           absl::c_linear_search(update.ranks, static_cast<int32_t>(rank));
  });
}

size_t TurnPlan::OverAt(const ShardTwin& twin, const Clocks& until) const {
  size_t over = 0;
  for (const DelayTrace::Update& update : DelaysOf(twin).updates) {
    const bool here = absl::c_all_of(update.ranks, [&](int32_t rank) {
      return update.clock < until.at(rank);
    });
    if (!here) break;
    ++over;
  }
  return over;
}

std::set<std::pair<Clock, Rank>> TurnPlan::WaitingAt(
    const ShardTwin& twin, const Clocks& until) const {
  const auto& updates = DelaysOf(twin).updates;
  std::set<std::pair<Clock, Rank>> waiting;
  for (size_t turn = OverAt(twin, until); turn < updates.size(); ++turn) {
    for (const int32_t rank : updates[turn].ranks) {
      if (updates[turn].clock < until.at(rank))
        waiting.insert({updates[turn].clock, Rank{rank}});
    }
  }
  return waiting;
}

std::set<size_t> TurnPlan::KeptAt(const ShardTwin& twin,
                                  const Clocks& until) const {
  const size_t over = OverAt(twin, until);
  std::set<size_t> kept;
  for (const DelayTrace::Read& read : DelaysOf(twin).reads) {
    if (read.clock >= until.at(read.rank) &&
        static_cast<size_t>(read.version) < over) {
      kept.insert(static_cast<size_t>(read.version));
    }
  }
  return kept;
}

bool TurnPlan::IsClosed(const Clocks& until) const {
  for (const DelayTrace::Shard& shard : scenario_.delays.shards) {
    for (const DelayTrace::Read& read : shard.reads) {
      if (read.clock >= until.at(read.rank)) continue;
      for (int64_t turn = 0; turn < read.version; ++turn) {
        const DelayTrace::Update& update =
            shard.updates[static_cast<size_t>(turn)];
        for (const int32_t rank : update.ranks) {
          if (update.clock >= until.at(rank)) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace slackline::sim
