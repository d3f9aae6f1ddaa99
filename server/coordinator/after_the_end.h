// AfterTheEnd: until when a coordinator whose job has ended is there for the
// others: every living member hears that the job has ended, or had the time to;
// users get what their members still write down for them; and whoever has asked
// for a place lately hears how it has ended.
//
// Owns the two times that this goes by: when the job ended, and by when members
// have found a coordinator that has taken over. All times are awake time
// (Membership::AwakeTime()).
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "server/coordinator/inspections.h"
#include "server/coordinator/membership.h"

namespace slackline {

class AfterTheEnd {
 public:
  // Both outlive it.
  AfterTheEnd(absl::Duration lease, const Membership* members,
              const Inspections* inspections)
      : lease_(lease), members_(*members), inspections_(*inspections) {}

  // This coordinator has taken over; members have found it by then.
  void OnTakenOver(absl::Time found_by) { found_by_ = found_by; }
  // True: for the first time.
  bool OnEnded(absl::Time awake);

  // Everybody knows, or had the time to: nobody needs this coordinator any
  // more. `view_number` is that of the view with the end.
  bool Over(absl::Time awake, uint64_t view_number) const;
  // It is over by then, whatever others do. InfiniteFuture: the job has not
  // ended.
  absl::Time OverBy() const;

 private:
  const absl::Duration lease_;
  const Membership& members_;
  const Inspections& inspections_;
  absl::Time ended_at_ = absl::InfiniteFuture();
  absl::Time found_by_ = absl::InfinitePast();
};

}  // namespace slackline
