// Where the ranks of a new group leave their addresses for each other.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace slackline {

// A key-value store that all ranks of a job share. Keys are printable, values
// are bytes (about 200 for each pair of ranks). Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // Keeps `value`, which Get() on every rank then returns. A key is written
  // once.
  virtual absl::Status Put(const std::string& key, std::string value) = 0;

  // Waits until `key` is there, at most `wait_max` (which may be zero: look
  // once). DeadlineExceeded if it is not there by then. Any other error means
  // that waiting has become pointless, for example because a member died.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          absl::Duration wait_max) = 0;
};

}  // namespace slackline
