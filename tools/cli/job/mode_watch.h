// ModeWatch: what becomes of a change of mode that a user has asked for, from
// status replies.
//
// Deterministic state machine without sockets or clocks. Thread-compatible.
#pragma once

#include <optional>
#include <string>

#include "common/sync/modes/mode.h"
#include "proto/control.pb.h"

namespace slackline {

class ModeWatch {
 public:
  enum class State {
    kWaitsForMoves,  // Of shards: it begins when they are done.
    kOpen,           // The workers settle the clock.
    kSettled,        // The clock is known; not all workers have got there.
    kDone,           // All workers train in the new mode.
    kDropped,        // It will not happen.
  };

  // `before` is a status from before the coordinator agreed to the change.
  ModeWatch(const sync::Mode& wanted, const wire::StatusReply& before)
      : wanted_(wanted), phases_before_(before.view().phase_size()) {}

  // With a status from after it.
  void Update(const wire::StatusReply& status);

  State state() const { return state_; }
  bool Over() const {
    return state_ == State::kDone || state_ == State::kDropped;
  }
  // Of the change, once kDone; the coordinator forgets old ones.
  const std::optional<run::ModeRecord>& record() const { return record_; }
  // How it stands, for people: "ssp:3 holds from clock 512; the slowest worker
  // is at 508".
  std::string Line() const;

 private:
  const sync::Mode wanted_;
  const int phases_before_;
  State state_ = State::kOpen;
  wire::Phase phase_;    // From kSettled on.
  int64_t slowest_ = 0;  // Clock of a worker.
  int moves_ = 0;        // Of shards, under way.
  int64_t steps_total_ = 0;
  std::optional<run::ModeRecord> record_;
};

}  // namespace slackline
