#include "worker/core/change_times.h"

namespace slackline {

void ChangeTimes::Describe(absl::Time now, wire::Entered* entered) const {
  if (since_ != absl::InfiniteFuture())
    entered->set_pause_micros(absl::ToInt64Microseconds(now - since_));
  entered->set_connect_micros(absl::ToInt64Microseconds(connect_));
  entered->set_transfer_micros(absl::ToInt64Microseconds(transfer_));
  entered->set_bytes(moved_.bytes);
  entered->set_model_hash(moved_.model_hash);
}

}  // namespace slackline
