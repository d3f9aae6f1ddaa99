// What a shard keeps in a job whose delays are given (DelayPlan): gradients
// that wait for their turn, and earlier versions from which gradients are still
// to be computed, as references.
//
// Both are bounded by the plan: a gradient is taken only if its version is
// there, and a version is let go as soon as the last gradient computed from it
// has come. Nothing of this moves with a shard, so shards of such a job stay.
// Thread-compatible; the shard thread's.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/delays/delay_plan.h"
#include "common/optim/step_options.h"
#include "common/payload.h"
#include "server/shard/shard.h"

namespace slackline {

class GivenDelays {
 public:
  GivenDelays() = default;  // None are given.
  GivenDelays(std::shared_ptr<const DelayPlan> plan, ShardId shard);

  bool given() const { return plan_ != nullptr; }
  // That are over.
  int64_t turns() const { return turns_; }

  // ---- If they are given. Ranks are those of the plan.
  const DelayPlan& plan() const { return *plan_; }
  // So many turns have to be over before this worker is told the values of its
  // step.
  int64_t TurnsBefore(Rank rank, Clock clock) const;
  // The clock that all workers have completed by then.
  Clock CompleteFor(Rank rank, Clock clock) const;
  // False: the delays have no update with that gradient.
  bool Uses(Rank rank, Clock clock) const;
  // What the step is computed from. `present` is the shard. nullopt: it is not
  // there yet, or everybody who needs it has pushed.
  struct Base {
    Version version = 0;
    Payload values;
  };
  std::optional<Base> BaseOf(Rank rank, Clock clock,
                             const Shard& present) const;

  struct Push {
    Rank rank{};
    Clock clock = 0;
    Version base = 0;
    Payload base_values;  // None if nothing needs them.
    Payload gradient;     // None: its turn changes nothing.
    StepOptions options = {};
    double rms = 0;  // As in GradientRecord.
  };
  // The worker's next gradient.
  void Add(Push push);
  // Gradients that wait for their turn.
  size_t waiting() const { return waiting_gradients_; }
  size_t kept_versions() const { return kept_.size(); }

  // All gradients of the next turn are there.
  bool Ready() const;
  // Ends that turn; `before` is the shard before its update.
  struct Turn {
    Clock clock = 0;
    int workers = 1;
    bool mean = false;
    std::vector<Push> pushes;  // In their order.
  };
  Turn Take(const Shard& before);
  // The first gradient that the next turn waits for; nullopt: none.
  std::optional<std::pair<Rank, Clock>> Missing() const;

 private:
  struct Kept {
    Base base;
    int readers = 0;  // Still to come.
  };
  const DelayTrace::Update* NextTurn() const;

  std::shared_ptr<const DelayPlan> plan_;
  ShardId shard_{};
  int64_t turns_ = 0;
  std::vector<Clock> next_clock_;  // By rank: of what was added.
  absl::flat_hash_map<std::pair<Rank, Clock>, Push> waiting_;
  size_t waiting_gradients_ = 0;  // Of those: that are not none.
  std::map<int64_t, Kept> kept_;  // By turns before them.
};

}  // namespace slackline
