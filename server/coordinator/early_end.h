// EarlyEnd: the end of the job at a step before its last one, if a user ends it
// early: which one that is the workers agree on (clock_agreement.h).
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/coordinator_state.pb.h"
#include "server/coordinator/clock_agreement.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class EarlyEnd {
 public:
  // `agreement` outlives it.
  explicit EarlyEnd(ClockAgreement* agreement) : agreement_(*agreement) {}

  // Somebody has ended the job early, or is about to.
  bool IsUnderWay() const {
    return wanted_.has_value() || IsOpen() || !ended_early_.empty();
  }
  // The workers agree on its clock.
  bool IsOpen() const { return agreement_.IsOn(wire::ModeChange::kEnding); }
  // Who has ended the job early and why; empty: nobody has.
  const std::string& ended_early() const { return ended_early_; }

  // The job is to end as soon as all workers can complete the same steps. To
  // want it once more has no effect.
  void Want(const std::string& reason) {
    if (!IsUnderWay()) wanted_ = reason;
  }
  // It is wanted, and the workers agree on nothing else: they are to agree on
  // it.
  void AskFor();
  // It is open. True once the view has its clock, or it is dropped.
  bool Settle(const ClockAgreement::Limits& limits, ViewEditor* editor,
              std::vector<std::string>* log);

  // For the next coordinator.
  void Keep(coordinator::ModesState* state) const;
  void Load(const coordinator::ModesState& state);

 private:
  ClockAgreement& agreement_;
  std::optional<std::string> wanted_;  // Why.
  std::string ended_early_;
};

}  // namespace slackline
