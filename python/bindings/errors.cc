#include "python/bindings/errors.h"

#include <string>

#include "common/membership/end_status.h"

namespace slackline::python {

void ThrowIfBad(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(status.message());
  if (absl::IsInvalidArgument(status) || absl::IsNotFound(status))
    throw nanobind::value_error(message.c_str());
  if (IsSuspended(status)) throw JobSuspended(message);
  throw JobError(message);
}

}  // namespace slackline::python
