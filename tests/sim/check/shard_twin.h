// The naive twin of one shard: who takes part, what has been accepted, and what
// every version of it must be.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/optim/gradient_bound.h"
#include "common/view/shard_map.h"
#include "tests/sim/check/bits.h"

namespace slackline::sim {

using Tensor = std::vector<float>;
using Versions = std::vector<Tensor>;

struct TwinParticipant {
  Clock joined_at = 0;
  Clock clock = 0;  // As its pushes and declarations make it.
  uint64_t next_seq = 1;
  bool present = true;  // In the last view that the shard thread was handed.
};
struct Contribution {
  Life life;
  Clock clock = 0;
  auto operator<=>(const Contribution&) const = default;
};
struct TwinUpdate {
  std::vector<Contribution> contributions;  // In the order of the sum.
  int divisor = 1;
  bool held = false;  // It waited for the whole clock.
  bool by_all_reduce = false;
  Clock clock = 0;  // Whose learning rate it has.
  // What the rule for stale gradients made of a gradient and of its rate.
  float gradient_factor = 1;
  double rate_factor = 1;
  std::vector<Life> present = {};  // Unless held: the divisor counts them.
  std::vector<double> sizes = {};  // Of the contributions, with a bound.
};
// What a twin is at one place of its log, without the tensors.
struct TwinState {
  std::map<Life, TwinParticipant> participants;  // Those that are gone, too.
  // BSP and BACKUP: accepted in time, not applied yet.
  std::vector<Contribution> held;
  // What the last gradient that was accepted becomes.
  float gradient_factor = 1;
  double rate_factor = 1;
  // If the job has a bound: of the gradients that were applied; and the sizes
  // of those that are held, which are of the shard as it was when they came.
  RunningRms running_rms = {};
  std::map<Contribution, double> held_sizes = {};
  // Not applied by a rule, or skipped.
  std::set<Contribution> without_effect;
  Clock min_clock = 0;
  Clock complete = 0;  // Clocks below it are complete.
  Clock installed_at = -1;
  // If delays are given: by turns that are over, the version then; and the
  // gradients that wait for their turn.
  std::vector<Version> after_turns = {0};
  std::set<std::pair<Clock, Rank>> waiting = {};
};
// What anybody was told of a shard.
struct Told {
  std::map<Life, uint64_t> accepted_seq;
  std::map<Life, Clock> joined_at;
  Version version = 0;
  Clock complete = 0;
};
struct ShardTwin : TwinState {
  ShardRange range;
  std::string name;
  Versions versions;                // versions[0] is the initial one.
  std::vector<Versions> slots;      // By version, then slot.
  std::vector<TwinUpdate> updates;  // updates[v] leads to version v + 1.
  RunningRms resumed_rms;           // As the job has begun.
  // What it was before it was split in two by the view of this number.
  std::vector<std::pair<uint64_t, Versions>> before_split;
  int32_t origin = 0;          // What it was split off from; else itself.
  int32_t first = 0;           // The shard of the first view that it was in.
  std::optional<Owner> owner;  // Who serves it now.
  std::optional<Owner> last_owner;
  uint64_t newest_view = 0;  // That an owner of it has had.
  // By rank: the life and the last step whose lead its server has counted.
  std::map<Rank, std::pair<Incarnation, Clock>> leads;
  int32_t cut_done = 0;     // The last cut of which its owner has a state.
  bool cut_copied = false;  // Its owner has a copy for a cut just now.
  // ---- With replicas.
  uint64_t index = 0;  // Of its log, as in LogPosition.
  struct Logged {
    TwinState state;
    Version version = 0;
    // False: a record before it or behind it may be missing here or too much,
    // since views bring several at once.
    bool exact = true;
  };
  std::map<uint64_t, Logged> log;  // By index.
  // By term: the index from which on the log is that of its owner.
  std::map<uint64_t, uint64_t> terms;
  // What it was when it was split in two, and when a follower began to serve it
  // that had another part of the log. A copy may still be that.
  std::vector<std::shared_ptr<const ShardTwin>> earlier;
  int failovers = 0;
  uint64_t promoted_in = 0;         // The view by which the last one was.
  int32_t cut_before_failover = 0;  // The last cut by then.
  Told told;
};

void UpdateMinClock(ShardTwin& twin);
int PresentCount(const ShardTwin& twin);
// `*whole` keeps what is before the split; returns what becomes shard `id`.
ShardTwin SplitTwin(const View& view, const wire::Split& split, int32_t id,
                    ShardTwin* whole);
// The view gives the shard to somebody else than `owner`, though no move of it
// to there is under way.
bool Deposes(const View& view, int32_t shard, Owner owner);

}  // namespace slackline::sim
