#include "server/shard/shard_state.h"

#include "common/status.h"

namespace slackline {

ShardState SplitState(ShardState& state, const ShardRange& kept,
                      const ShardRange& cut) {
  SL_CHECK(state.gate.parked_count() == 0, "a split with parked pulls");
  ShardState other{.shard = state.shard.Split(kept, cut),
                   .gate = {},
                   .bsp_clock = state.bsp_clock,
                   .held = {},
                   .stale = StalePushes(state.stale.rule())};
  state.stale.Forget();
  other.gate.Restore(state.gate.MinClock(), state.gate.participants());
  for (ShardState::Held& held : state.held) {
    other.held.push_back(
        {.rank = held.rank,
         .incarnation = held.incarnation,
         .gradient = held.gradient.Slice(kept.bytes(), cut.bytes())});
    held.gradient = held.gradient.Slice(0, kept.bytes());
  }
  return other;
}

}  // namespace slackline
