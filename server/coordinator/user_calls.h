// UserCalls: what users ask the coordinator for, beside to look and to stop.
// Each call is carried out once, however often it comes.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/checkpointer.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part.h"
#include "server/coordinator/placement.h"

namespace slackline {

class UserCalls : public CoordinatorPart {
 public:
  // All outlive it.
  UserCalls(Placement* placement, ModeControl* modes,
            Checkpointer* checkpointer)
      : placement_(placement), modes_(modes), checkpointer_(checkpointer) {}

  // Rebalance, move_shards, drain, set_mode, finish and checkpoint.
  static bool Takes(const wire::Call& call);
  void OnCall(const PeerId& from, const wire::Call& call, absl::Time now,
              CoordinatorEffects* effects);

  // Answers those whose checkpoint has come, or will not.
  void AnswerCalls(CoordinatorEffects* effects) override;

  // A call that was carried out is not carried out again by the next
  // coordinator.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  size_t kept() const { return past_.size(); }

 private:
  void Answer(Outgoing answer, CoordinatorEffects* effects);

  Placement* const placement_;
  ModeControl* const modes_;
  Checkpointer* const checkpointer_;
  // The last calls, oldest first, and their answers.
  std::deque<std::pair<std::pair<PeerId, uint64_t>, Outgoing>> past_;
  bool news_ = false;  // For Keep().
};

}  // namespace slackline
