// What a test needs and does not test.
#pragma once

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace slackline {

// Ends the test program if `status` is an error.
inline void Must(const absl::Status& status) {
  if (!status.ok()) {
    ADD_FAILURE() << status;
    std::abort();
  }
}

// The value; ends the test program with the error if there is none.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    ADD_FAILURE() << value.status();
    std::abort();
  }
  return std::move(value).value();
}

}  // namespace slackline
