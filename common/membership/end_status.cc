#include "common/membership/end_status.h"

#include "absl/strings/cord.h"

namespace slackline {
namespace {
constexpr char kSuspendedUrl[] = "slackline/suspended";
}  // namespace

absl::Status EndStatus(absl::StatusCode code, const wire::JobEnd& end) {
  absl::Status status(code, end.reason());
  if (end.cause() == wire::JobEnd::SUSPENDED)
    status.SetPayload(kSuspendedUrl, absl::Cord());
  return status;
}

bool IsSuspended(const absl::Status& status) {
  return status.GetPayload(kSuspendedUrl).has_value();
}

}  // namespace slackline
