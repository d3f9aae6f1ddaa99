#include "common/time/time_source.h"

#include <chrono>

#include "absl/time/clock.h"

namespace slackline {

absl::Time TimeSource::Now() const {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

absl::Time TimeSource::WallNow() const {
  const absl::Time now = absl::Now();
  return Now() < step_at_ ? now : now + step_by_;
}

}  // namespace slackline
