// CutAgreement: which gradients a checkpoint has (wire::Cut): the clocks at
// which it is cut, on which the workers agree (clock_agreement.h). When one is
// taken, and what becomes of it, is the Checkpointer's (checkpointer.h).
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "proto/coordinator_state.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/clock_agreement.h"
#include "server/coordinator/job_delays.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class CutAgreement {
 public:
  // They outlive it.
  CutAgreement(ClockAgreement* agreement, JobDelays* delays)
      : agreement_(*agreement), delays_(*delays) {}

  // A cut is wanted, open, or not yet made by all shards.
  bool IsUnderWay() const { return shards_cut_ || IsAwaited(); }
  // A cut is wanted or open: the view has not got it yet.
  bool IsAwaited() const { return wanted_.has_value() || IsOpen(); }
  // The workers agree on its clocks.
  bool IsOpen() const { return agreement_.IsOn(wire::ModeChange::kCutting); }
  // Shards may still have to make the view's cut.
  bool shards_cut() const { return shards_cut_; }

  // The view is to get a cut as soon as no shard moves. The cut before is done.
  void Want(const std::string& reason);
  // It is wanted, and the workers agree on nothing else: they are to agree on
  // it.
  void AskFor();
  // It is open. True once the view has it, or there will be none: then
  // `dropped` says why.
  bool Settle(const std::vector<ClockAgreement::Worker>& workers,
              const ClockAgreement::Limits& limits, ViewEditor* editor,
              std::vector<std::string>* log, std::string* dropped);
  // No shard needs to make the view's cut any more.
  void Done() { shards_cut_ = false; }

  // For the next coordinator.
  void Keep(coordinator::ModesState* state) const;
  void Load(const coordinator::ModesState& state);

 private:
  // The cut of workers that do not wait for each other is where each of them
  // has promised to stop; else it is at one clock for all. nullopt: it would be
  // at the end of the job.
  std::optional<wire::Cut> CutOf(
      const std::vector<ClockAgreement::Worker>& workers,
      const ClockAgreement::Limits& limits, const wire::View& view) const;
  // The cut of a job whose delays are given: each worker has a clock of its own
  // there, too, which is often beyond where it has promised to stop.
  static std::optional<wire::Cut> CutOfPlan(
      const DelayPlan& plan, const std::vector<ClockAgreement::Worker>& workers,
      const ClockAgreement::Limits& limits, const wire::View& view);

  ClockAgreement& agreement_;
  JobDelays& delays_;
  std::optional<std::string> wanted_;  // Why.
  bool shards_cut_ = false;
};

}  // namespace slackline
