// GivenTurns: what a shard has beside its values in a job whose delays are
// given (DelayPlan): the turns that are over, the gradients that wait for their
// turn, and the earlier versions from which gradients are still to be computed.
//
// Both lists are bounded by the plan: a gradient is taken only if its version
// is there, and a version is let go with the last gradient that needs it.
//
// Pure state machine: no I/O, threads, time or randomness. Thread-compatible. A
// copy shares the tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/delays/delay_plan.h"
#include "common/optim/update_rule.h"
#include "common/payload.h"
#include "common/sync/participants.h"
#include "server/shard/accepted_gradients.h"
#include "server/shard/shard_snapshot.h"

namespace slackline {

class GivenTurns : public AcceptedGradients {
 public:
  // `rule` has delays, and Check() has found nothing.
  GivenTurns(std::shared_ptr<const UpdateRule> rule, TurnState state);

  // Whether a shard of this version with these participants can have this
  // state. Of the tensors only the numbers count. InvalidArgument says why not.
  static absl::Status Check(const UpdateRule& rule, const TurnState& state,
                            Version version, const Participants& participants);

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

  absl::Status MayJoin() const override;
  // Only before all turns, and with nobody who joins.
  absl::Status MayInstall(const InstallRecord& install) const override;
  absl::Status Add(const GradientRecord& push, const Present& present) override;
  absl::Status AddSum(const SumRecord& sum, Clock last,
                      const Participants& after) override;
  void OnPushed(Rank rank, Clock from, Clock to,
                const Participants& participants) override;
  void OnParticipants(const Participants& participants) override;
  // Ends the next turn, if all that it needs is there.
  std::optional<DueUpdate> Next(const Present& present,
                                std::optional<Clock> completed,
                                std::vector<TurnVerdict>* verdicts) override;
  bool NeedsUpdates() const override { return rule_->stale.NeedsUpdates(); }
  void OnUpdate(const Payload& before, const Payload& after) override;
  GivenTurns Split(const ShardStore& store, const Region& kept,
                   const Region& rest);
  void Put(ShardSnapshot* snapshot) const override;
  absl::Status Check(const ShardStore& store) const override;
  size_t size() const override { return state_.waiting.size(); }
  ModeRule::Updates order_of_values() const override {
    return ModeRule::Updates::kAsGiven;
  }
  bool plans_cuts() const override { return true; }

 private:
  DelayPlan::OfShard turns() const { return plan().Of(state_.plan); }
  // Somebody still needs the version after so many turns.
  bool IsNeeded(int64_t turns, const Participants& participants) const;
  void LetGo(int64_t turns, const Participants& participants);
  // Decides what is applied of this gradient.
  TurnVerdict Judge(std::pair<Rank, Clock> of, WaitingGradient* waiting,
                    bool mean, int workers, const Present& present);

  std::shared_ptr<const UpdateRule> rule_;
  TurnState state_;
};

}  // namespace slackline
