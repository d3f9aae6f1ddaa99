// LinkProbe: the question without payload that is under way to one shard
// thread, at most one at a time, whose reply is certain about all that was sent
// before it.
//
//     Begin() --> under way --> OnReply() --> none
//                     | late: OnTick(), then Begin() again
//
// Owns the number of the probe and its timer. The time-out doubles while probes
// are not answered. No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "common/time/round_trip.h"

namespace slackline {

class LinkProbe {
 public:
  bool under_way() const { return number_ != 0; }
  // The largest number of a probe; 0: there was none. It may be answered.
  uint64_t last() const { return last_; }
  absl::Time NextWakeup() const { return again_at_; }

  // A probe of this number leaves, in place of one that is under way.
  void Begin(uint64_t number, const RoundTrip& round_trip, absl::Time now) {
    number_ = last_ = number;
    sent_ = now;
    again_at_ = now + round_trip.Timeout(unanswered_);
  }
  // There is nothing to ask any more.
  void End() {
    number_ = 0;
    again_at_ = absl::InfiniteFuture();
  }
  // Measures the round trip, if the reply is to the probe under way, which is
  // over then. False if no probe of this number was ever sent.
  bool OnReply(uint64_t number, RoundTrip& round_trip, absl::Time now) {
    if (number == 0 || number > last_) return false;
    if (number == number_) {
      round_trip.Add(now - sent_);
      End();
      unanswered_ = 0;
    }
    return true;
  }
  // True if the reply is late: another probe is due now.
  bool OnTick(absl::Time now) {
    if (again_at_ > now) return false;
    ++unanswered_;
    return true;
  }

 private:
  uint64_t number_ = 0;  // The probe under way; 0: there is none.
  uint64_t last_ = 0;
  absl::Time sent_;
  absl::Time again_at_ = absl::InfiniteFuture();
  int unanswered_ = 0;  // Probes since the last reply.
};

}  // namespace slackline
