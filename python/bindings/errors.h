// What goes wrong, as exceptions of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slackline::python {

// slackline.JobError: the job cannot go on, or not with this worker.
class JobError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// slackline.JobSuspended: it has ended after a checkpoint and can go on.
class JobSuspended : public JobError {
  using JobError::JobError;
};

// InvalidArgument and NotFound become a ValueError, all others a JobError. May
// be called without the GIL.
void ThrowIfBad(const absl::Status& status);

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowIfBad(value.status());
  return *std::move(value);
}

}  // namespace slackline::python
