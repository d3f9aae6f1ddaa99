// StepPulls: the pulls of a worker's steps over servers: which one is open,
// when the next one may be asked for, and when a question of the program has
// its turn.
//
// A shard parks one pull of each worker, so one pull is open at a time: of
// parameters, or of the state that the program asked for. Parameters of a step
// are asked for in one of three ways:
//
// - behind the gradients of the step before (AskBehindPushes()), so that both
//   directions of a link are busy at once;
// - beside the computation of the step before, so that they have come when that
//   ends; they miss its gradients;
// - when they are needed.
//
// Deterministic state machine over ClientCore, which it is given with each
// call. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"
#include "worker/core/worker_actions.h"
#include "worker/core/worker_stage.h"

namespace slackline {

class StepPulls {
 public:
  // A call of the client: what it sends goes to `effects`.
  struct Client {
    ClientCore& core;
    absl::Time now;
    ClientCore::Effects* effects;
  };

  // ---- The open pull. There is none when one of these is called.

  void Join(const Client& client);
  // Asks for parameters for `clock`, for a worker that has pushed its gradients
  // of the clocks before `own_clock`.
  void Ask(const Client& client, Clock clock, Clock own_clock);
  // Asks for parameters for `clock`, each shard behind its gradient of the
  // clock before.
  void AskBehindPushes(ClientCore& client, Clock clock);
  // Asks for everything, for the worker to go on with by itself.
  void AskToTakeState(const Client& client, Clock clock);
  // Asks for the final model.
  void AskModel(const Client& client, Clock clock);

  bool is_open() const { return pull_id_ != 0; }
  uint64_t id() const { return pull_id_; }
  // The open pull was answered.
  void Close() { pull_id_ = 0; }
  // The open pull's answer, or the last one, has this worker's pushes before
  // `clock`.
  bool HasOwn(Clock clock) const { return pulled_own_ >= clock; }

  // ---- Parameters of the next step that have come and are not used yet

  const PulledParameters& parameters() const { return parameters_; }
  void Keep(PulledParameters parameters) {
    parameters_ = std::move(parameters);
  }
  PulledParameters Take() { return std::exchange(parameters_, nullptr); }
  void Drop() { parameters_ = nullptr; }

  // ---- When the next ones may be asked for

  // No pull is open, none has brought parameters, and none is to go before.
  bool IsFree() const {
    return !is_open() && parameters_ == nullptr && !asks_state();
  }
  // Whether the mode at `next` lets its parameters miss gradients of the step
  // before it, this worker's or others'.
  static bool MayMissLastStep(const View& view, Clock next);
  // Whether pulls at `next` have to wait for a turn that is given, which may be
  // after the very step before it.
  static bool HasGivenTurn(const View& view, Clock next);
  // Whether a pull behind the pushes of the step before `next` misses none of
  // the others' gradients that a later one would have: they are on their way at
  // the same time.
  static bool MayFollowPushes(const View& view, Clock next);

  // ---- The state, for the program

  // The program wants it. Once at a time.
  void WantState(StateParts parts) { wants_state_ = parts; }
  bool asks_state() const {
    return wants_state_.has_value() || asked_state_ != 0;
  }
  // Asks for it if it is wanted and no pull is open; whether it has. The worker
  // is at `clock`.
  bool AskStateIfFree(const Client& client, const View& view, Clock clock);
  // The open pull waits for what the program does after it has got the state:
  // it is forgotten. False: it does not.
  bool ForgetForState(const Client& client, Clock clock);
  // Whether this is the answer to AskStateIfFree(); then nothing is asked any
  // more.
  bool TakesState(const PullResult& result);

 private:
  uint64_t pull_id_ = 0;
  Clock pulled_own_ = 0;                   // As HasOwn() says.
  std::optional<StateParts> wants_state_;  // Once no other pull is open.
  uint64_t asked_state_ = 0;  // The pull for that; 0: it is not open.
  PulledParameters parameters_;
};

}  // namespace slackline
