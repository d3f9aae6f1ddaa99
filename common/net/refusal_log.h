// RefusalLog: says in the log whom a listener has refused.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/net/transport.h"

namespace slackline {

// Thread-compatible; belongs to the listener's thread.
class RefusalLog {
 public:
  // Who listens, "the coordinator".
  explicit RefusalLog(std::string who) : who_(std::move(who)) {}

  // The first refusal is said at once, and others together, once a minute: who
  // knocks again and again does not fill the log. So are connections of
  // those who have not said who they are, which may be innocent. Call it now
  // and then.
  void Look(const ChannelCounts& counts, absl::Time now);

 private:
  const std::string who_;
  uint64_t said_ = 0;
  absl::Time next_ = absl::InfinitePast();
  uint64_t silent_said_ = 0;
  absl::Time silent_next_ = absl::InfinitePast();
};

}  // namespace slackline
