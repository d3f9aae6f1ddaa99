// ChangeTimes: how long a worker stands still for a change of the mode, or of
// its group, and what for: connecting, and moving the state. The coordinator
// gets it with wire::Entered.
//
// A change begins when the worker cannot go on with a step, and ends with its
// next step. Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "worker/core/worker_actions.h"

namespace slackline {

class ChangeTimes {
 public:
  // The worker stands still; if it did so before, from then on.
  void Begin(absl::Time now) {
    if (since_ == absl::InfiniteFuture()) since_ = now;
  }
  // The worker steps again: what follows is another change.
  void End() { *this = ChangeTimes(); }

  void OnConnecting(absl::Time now) { connecting_since_ = now; }
  void OnConnected(absl::Time now) { connect_ += now - connecting_since_; }

  void OnMoving(absl::Time now) { moving_since_ = now; }
  // A part of the state was read, to be given to the servers.
  void OnRead(const worker_action::Moved& part) {
    moved_.bytes += part.bytes;
    moved_.model_hash = part.model_hash;
  }
  // The servers have the whole state.
  void OnGiven(absl::Time now) { transfer_ += now - moving_since_; }
  // The state of the servers was taken.
  void OnTaken(const worker_action::Moved& state, absl::Time now) {
    transfer_ += now - moving_since_;
    moved_ = state;
  }

  // Fills in how long it took, if there is a change.
  void Describe(absl::Time now, wire::Entered* entered) const;

 private:
  absl::Time since_ = absl::InfiniteFuture();  // None is under way.
  absl::Time connecting_since_ = absl::InfiniteFuture();
  absl::Time moving_since_ = absl::InfiniteFuture();
  absl::Duration connect_;
  absl::Duration transfer_;
  worker_action::Moved moved_;
};

}  // namespace slackline
