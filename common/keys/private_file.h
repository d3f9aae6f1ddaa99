// Files with a secret, which protects nothing if others than their owner can
// read or change them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slackline {

struct PrivateFile {
  std::string name;  // Begins errors: "key file /home/me/key".
  std::string path;
  size_t bytes_max = 0;
  // What else is to be done if others may have read it, as "make a new one".
  std::string if_read;
};

// All of its bytes. FailedPrecondition: others can read or change it; names the
// command that mends that. InvalidArgument: it is no regular file, or too long.
// Others as PrivateFileError().
absl::StatusOr<std::string> ReadPrivateFile(const PrivateFile& file);

// Of a call of the system: NotFound, AlreadyExists, PermissionDenied, else
// Unavailable.
absl::Status PrivateFileError(const std::string& name, const char* call,
                              int error);

}  // namespace slackline
