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

}  // namespace slackline::sim
