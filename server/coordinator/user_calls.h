// UserCalls: what users ask the coordinator for, beside to look and to stop.
// Each call is carried out once, however often it comes.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/time/time.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/placement.h"

namespace slackline {

class UserCalls {
 public:
  // Both outlive it.
  UserCalls(Placement* placement, ModeControl* modes)
      : placement_(placement), modes_(modes) {}

  // Rebalance, move_shards, drain and set_mode.
  static bool Takes(const wire::Call& call);
  void OnCall(const PeerId& from, const wire::Call& call, absl::Time now,
              CoordinatorEffects* effects);

  size_t kept() const { return past_.size(); }

 private:
  Placement* const placement_;
  ModeControl* const modes_;
  // The last calls, oldest first, and their answers.
  std::deque<std::pair<std::pair<PeerId, uint64_t>, Outgoing>> past_;
};

}  // namespace slackline
