// Small files, read whole.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace slackline {

// NotFound: there is none. DataLoss: it has more than `bytes_max` bytes, or is
// not a regular file, which is not waited for. Errors name path, call and
// reason.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t bytes_max);

}  // namespace slackline
