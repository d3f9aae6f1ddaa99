// GivenTurns: what a shard has beside its values in a job whose delays are
// given (DelayPlan): the turns that are over, the gradients that wait for their
// turn, and the earlier versions from which gradients are still to be computed.
//
// It is a part of the shard's state: who applies the same records to the same
// shard takes the same turns, with the same bits. Both lists are bounded by the
// plan: a gradient is taken only if its version is there, and a version is let
// go with the last gradient that needs it.
//
// Pure state machine: no I/O, threads, time or randomness. Thread-compatible. A
// copy shares the tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "common/delays/delay_plan.h"
#include "common/optim/update_rule.h"
#include "common/payload.h"
#include "common/sync/participants.h"
#include "server/shard/shard.h"
#include "server/shard/shard_record.h"

namespace slackline {

// One version of a shard.
struct ShardVersion {
  Version version = 0;
  Payload values;
};

struct WaitingGradient {
  Version base = 0;  // That it was computed from.
  Payload gradient;
  StepOptions options = {};
  double rms = 0;  // As in GradientRecord.
};

// All that there is of it in a snapshot. The tensors are references.
struct TurnState {
  // Of the shard that the job began with, in whose turns this one takes part:
  // it is that shard, or was split off from it.
  ShardId plan{};
  int64_t over = 0;  // Turns.
  std::map<std::pair<Clock, Rank>, WaitingGradient> waiting = {};
  std::map<int64_t, ShardVersion> kept = {};  // By the turns before them.
  StaleRule::Memory memory = {};              // Of the table's rule.
};

// What has become of a gradient whose turn has come.
struct TurnVerdict {
  enum class Kind { kApplied, kTooStale, kNotFinite, kOversized };
  Kind kind = Kind::kApplied;
  Rank rank{};
  Clock clock = 0;
  // One that was applied had missed so many updates, of so many for a clock.
  int64_t missed_updates = 0;
  int workers = 1;
  std::optional<GradientBound::Excess> excess = {};  // Of an oversized one.
};

class GivenTurns {
 public:
  // `rule` has delays, and Check() has found nothing.
  GivenTurns(std::shared_ptr<const UpdateRule> rule, TurnState state);

  // Whether a shard of this version with these participants can have this
  // state. Of the tensors only the numbers count. InvalidArgument says why not.
  static absl::Status Check(const UpdateRule& rule, const TurnState& state,
                            Version version, const Participants& participants);

  // Somebody else's values may only come before all turns, and with nobody who
  // joins.
  bool MayBegin(const InstallRecord& install) const {
    return state_.over == 0 && state_.waiting.empty() &&
           install.joining.empty();
  }

  const TurnState& state() const { return state_; }
  const DelayPlan& plan() const { return *rule_->delays; }
  // So many turns have to be over before this worker is told the values of its
  // step.
  int64_t TurnsBefore(Rank rank, Clock clock) const {
    return turns().TurnsBefore(static_cast<int32_t>(rank), clock);
  }
  // The clock that all workers have completed by then.
  Clock CompleteFor(Rank rank, Clock clock) const {
    return turns().CompleteFor(static_cast<int32_t>(rank), clock);
  }
  // False: the delays have no update with that gradient.
  bool Uses(Rank rank, Clock clock) const {
    return turns().Uses(static_cast<int32_t>(rank), clock);
  }
  // What the step is computed from. `present` is the shard. nullopt: it is not
  // there yet, or everybody who needs it has pushed.
  std::optional<ShardVersion> BaseOf(Rank rank, Clock clock,
                                     const Shard& present) const;
  // The first gradient that the next turn waits for; nullopt: none.
  std::optional<std::pair<Rank, Clock>> Missing(
      const Participants& participants) const;

  // A gradient waits for its turn. InvalidArgument: it can have none.
  absl::Status Add(const GradientRecord& push, const Shard& present);
  // The worker has pushed its clocks from `from` to below `to`.
  void OnPushed(Rank rank, Clock from, Clock to,
                const Participants& participants);
  // Anybody's clock may have changed.
  void OnParticipants(const Participants& participants);
  // All that the next turn needs is there.
  bool Ready(const Participants& participants) const;
  // Ends that turn. `present` is the shard, and `running` is of the gradients
  // that were applied before. Appends what has become of each gradient.
  struct Turn {
    Clock clock = 0;
    absl::InlinedVector<Rank, 1> ranks;  // Whose gradients are applied.
    std::vector<Payload> gradients;
    std::vector<double> rms;
    int workers = 1;  // As in ShardOutcome::Update.
    StepOptions options = {};
  };
  Turn Take(const Shard& present, const RunningRms& running,
            const Participants& participants,
            std::vector<TurnVerdict>* verdicts);
  // The turn's gradients have replaced these values.
  void OnUpdate(const Payload& before, const Payload& after);
  bool NeedsUpdates() const { return rule_->stale.NeedsUpdates(); }

  // The shard is split: keeps the first `bytes` of each tensor, and returns
  // what the part has.
  GivenTurns Split(size_t bytes);

 private:
  DelayPlan::OfShard turns() const { return plan().Of(state_.plan); }
  // Somebody still needs the version after so many turns.
  bool IsNeeded(int64_t turns, const Participants& participants) const;
  void LetGo(int64_t turns, const Participants& participants);
  // Decides what is applied of it.
  TurnVerdict Judge(std::pair<Rank, Clock> of, WaitingGradient* waiting,
                    bool mean, int workers, const Shard& present,
                    const RunningRms& running);

  std::shared_ptr<const UpdateRule> rule_;
  TurnState state_;
};

}  // namespace slackline
