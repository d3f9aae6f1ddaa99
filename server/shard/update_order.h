// UpdateOrder: when the gradients that a shard accepts become updates of it,
// and which of its versions a step is computed from. A mode says which order it
// has (ModeRule::updates()):
//
// | order | a gradient is applied | a pull is told |
// | --- | --- | --- |
// | AtOnce | as it comes, after the rule for stale gradients | what is there |
// | ByClock | with the others of its clock | what is there |
// | AsGiven | in its turn (GivenTurns) | the version that is named for it |
//
// An order decides; what it decides becomes a record of the shard's log.
//
// Deterministic state machines: the time goes in; no sockets, threads, clocks
// or randomness. Thread-compatible; the shard's thread is their only caller.
#pragma once

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/sync/dssp_controller.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/staleness_gate.h"
#include "proto/data.pb.h"
#include "server/shard/shard_counts.h"
#include "server/shard/shard_machine.h"
#include "server/shard/stale_pushes.h"

namespace slackline {

class UpdateOrder {
 public:
  virtual ~UpdateOrder() = default;

  // ---- Pushes.
  // Whether the worker's next push, a gradient of its clock or the word that it
  // has none, has a place in the order. Unavailable: not yet, it is to come
  // again. InvalidArgument: never.
  virtual absl::Status MayTake(const wire::Push& push, const Participant& from,
                               const ShardMachine& shard) const = 0;
  // A gradient that may be taken has come, whatever becomes of it.
  virtual void OnArrival(const Participant& /*from*/, Clock /*clock*/,
                         const sync::Mode& /*mode*/, absl::Time /*now*/) {}
  // The bound of sizes is for gradients as they come; else in their turn.
  virtual bool BoundsArrivals() const { return true; }
  enum class Verdict {
    kTaken,      // The record is what happens.
    kTooStale,   // The rule for stale gradients drops it.
    kUseless,    // It has no place in any update.
    kNotFinite,  // The rule for stale gradients has made it so.
  };
  // Decides on a gradient that may be taken, is finite, and within the bound if
  // that is for it; `base` is what it was computed from. May change the record.
  virtual Verdict Judge(const sync::Mode& mode, Version base,
                        const ShardMachine& shard, GradientRecord* record,
                        ShardCounts* counts) = 0;
  // An update has replaced these values; for orders that need it.
  virtual bool NeedsUpdates() const { return false; }
  virtual void OnUpdate(const Payload& /*before*/, const Payload& /*after*/) {}

  // ---- Pulls.
  struct PullTerms {
    PullNeeds needs;  // What the pull's step needs.
    // Steps that the mode may grant beyond, and what the step needs then.
    int64_t extra_steps = 0;
    Clock granted_of_all = 0;
  };
  // The worker has computed that step, and what it was computed from may be
  // gone.
  virtual bool IsOver(Clock /*step*/, const Participant& /*from*/,
                      const ShardMachine& /*shard*/) const {
    return false;
  }
  // Sets what the pull of a step waits for.
  virtual void Gate(const PullTerms& terms, const ShardMachine& shard,
                    GatedPull* pull);
  // What GatedPull::complete counts.
  virtual Clock Progress(const ShardMachine& shard) const {
    return shard.complete_clock();
  }
  // The pull of a step is answered with this: the version, and what the pull
  // asks for of its values.
  virtual ShardVersion Answer(const GatedPull& pull, const ShardMachine& shard);
  // The clock that all workers have completed in what the pull is told.
  virtual Clock CompleteFor(const GatedPull& /*pull*/,
                            const ShardMachine& shard) const {
    return shard.complete_clock();
  }
  // Whose push of which clock parked pulls wait for first; nullopt: nobody is
  // known to be awaited.
  virtual std::optional<std::pair<Rank, Clock>> Missing(
      const ShardMachine& shard) const;
};

class AtOnce : public UpdateOrder {
 public:
  explicit AtOnce(const UpdateRule& rule)
      : stale_(rule.stale, rule.optimizer.maximize()) {}

  absl::Status MayTake(const wire::Push& push, const Participant& from,
                       const ShardMachine& shard) const override;
  void OnArrival(const Participant& from, Clock clock, const sync::Mode& mode,
                 absl::Time now) override;
  Verdict Judge(const sync::Mode& mode, Version base, const ShardMachine& shard,
                GradientRecord* record, ShardCounts* counts) override;
  bool NeedsUpdates() const override { return stale_.rule().NeedsUpdates(); }
  void OnUpdate(const Payload& before, const Payload& after) override {
    stale_.OnUpdate(before, after);
  }
  void Gate(const PullTerms& terms, const ShardMachine& shard,
            GatedPull* pull) override;
  ShardVersion Answer(const GatedPull& pull,
                      const ShardMachine& shard) override;
  void ForgetStrangers(const Participants& participants) {
    stale_.ForgetStrangers(participants);
  }
  // Somebody else has made the values that are there now.
  void Forget() { stale_.Forget(); }

 private:
  // Both begin to measure anew wherever the shard gets.
  StalePushes stale_;
  DsspController dssp_;
};

class ByClock : public UpdateOrder {
 public:
  absl::Status MayTake(const wire::Push& push, const Participant& from,
                       const ShardMachine& shard) const override;
  Verdict Judge(const sync::Mode& mode, Version base, const ShardMachine& shard,
                GradientRecord* record, ShardCounts* counts) override;
};

// The order of a shard that has turns.
class AsGiven : public UpdateOrder {
 public:
  absl::Status MayTake(const wire::Push& push, const Participant& from,
                       const ShardMachine& shard) const override;
  bool BoundsArrivals() const override { return false; }
  Verdict Judge(const sync::Mode& mode, Version base, const ShardMachine& shard,
                GradientRecord* record, ShardCounts* counts) override;
  bool IsOver(Clock step, const Participant& from,
              const ShardMachine& shard) const override;
  void Gate(const PullTerms& terms, const ShardMachine& shard,
            GatedPull* pull) override;
  Clock Progress(const ShardMachine& shard) const override {
    return shard.turns()->state().over;
  }
  ShardVersion Answer(const GatedPull& pull,
                      const ShardMachine& shard) override;
  Clock CompleteFor(const GatedPull& pull,
                    const ShardMachine& shard) const override;
  std::optional<std::pair<Rank, Clock>> Missing(
      const ShardMachine& shard) const override;
};

// The orders of one shard: its job may change from one to another.
class UpdateOrders {
 public:
  // `of_values` is as in AcceptedGradients.
  UpdateOrders(const UpdateRule& rule, ModeRule::Updates of_values)
      : at_once_(rule), of_values_(of_values) {}

  // The order for pushes of a clock with this mode.
  UpdateOrder& Of(const sync::Mode& mode) { return Of(RuleOf(mode).updates()); }
  // The order for pulls, and what the values go through.
  UpdateOrder& OfValues() { return Of(of_values_); }
  // Some may have left: lets go what is only for them.
  void ForgetStrangers(const Participants& participants) {
    at_once_.ForgetStrangers(participants);
  }
  // Somebody else has made the values that are there now.
  void Forget() { at_once_.Forget(); }

 private:
  UpdateOrder& Of(ModeRule::Updates updates);

  AtOnce at_once_;
  ByClock by_clock_;
  AsGiven as_given_;
  ModeRule::Updates of_values_;
};

}  // namespace slackline
