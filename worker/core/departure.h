// Departure: how a worker leaves a job before its steps are done: what it still
// waits for then, and for how long.
//
// - Its machine will be taken away, and it has not joined again yet: it waits
//   to join. Then it asks for a checkpoint, or gives up.
// - A shard knows this incarnation no more: it waits for the coordinator to say
//   why. Then it was given up.
// - It has told the coordinator why it leaves: it waits for the answer, and
//   ends in any case.
// - It has told the coordinator to stop the job: it waits for the job's end,
//   and ends in any case.
//
// The caller does what is due and keeps the reason. Deterministic state machine
// without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace slackline {

class Departure {
 public:
  // Whoever takes a machine away gives 30 s, mostly.
  static constexpr absl::Duration kSuspendJoinMax = absl::Seconds(10);

  // The process will have to end soon, and has not joined again. False: that
  // was said before.
  bool SuspendWhenJoined(const std::string& reason, absl::Time now);
  // It has joined: the reason for which it asks for a checkpoint now; empty if
  // there is none.
  std::string OnJoined();
  bool GivesUpJoining(absl::Time now) const;
  const std::string& suspend_reason() const { return suspends_when_joined_; }

  // A shard knows this incarnation no more. True if the coordinator is to be
  // asked now: a shard may know before the worker that the job is over, or that
  // the lease ran out, and the coordinator knows which.
  bool OnFenced(absl::Time now, absl::Duration lease);
  // The coordinator says nothing.
  bool VerdictIsOverdue(absl::Time now) const { return now >= fenced_until_; }

  // It leaves, and has told the coordinator with this call.
  void OnLeaving(uint64_t call, absl::Time now);
  // It has told the coordinator to stop the job, and leaves when it has.
  void OnStopping(absl::Time now, absl::Duration lease);
  // Whether this is the answer to the call with which it leaves.
  bool OnAnswer(uint64_t call);
  bool GivesUpLeaving(absl::Time now) const {
    return now >= give_up_leaving_at_;
  }

  // The worker did not run for so long.
  void OnMissed(absl::Duration missed);
  // When something is due; `leaving` after OnLeaving() or OnStopping().
  absl::Time NextWakeup(bool leaving) const;

 private:
  // Why it is to ask for a checkpoint once it has joined; empty: nothing is to
  // be asked then.
  std::string suspends_when_joined_;
  absl::Time give_up_joining_at_ = absl::InfiniteFuture();
  absl::Time fenced_until_ = absl::InfiniteFuture();
  uint64_t leave_call_ = 0;  // 0: none, or it is answered.
  absl::Time give_up_leaving_at_ = absl::InfiniteFuture();
};

}  // namespace slackline
