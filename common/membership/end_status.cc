#include "common/membership/end_status.h"

#include "absl/strings/cord.h"

namespace slackline {
namespace {
constexpr char kSuspendedUrl[] = "slackline/suspended";
constexpr char kGivenUpUrl[] = "slackline/given-up";
}  // namespace

absl::Status EndStatus(absl::StatusCode code, const wire::JobEnd& end) {
  absl::Status status(code, end.reason());
  if (end.cause() == wire::JobEnd::SUSPENDED)
    status.SetPayload(kSuspendedUrl, absl::Cord());
  return status;
}

absl::Status GivenUpStatus(const std::string& why) {
  absl::Status status = absl::AbortedError(why);
  status.SetPayload(kGivenUpUrl, absl::Cord());
  return status;
}

bool IsGivenUp(const absl::Status& status) {
  return status.GetPayload(kGivenUpUrl).has_value();
}

bool IsSuspended(const absl::Status& status) {
  return status.GetPayload(kSuspendedUrl).has_value();
}

}  // namespace slackline
