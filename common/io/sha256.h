// SHA-256 as 64 lower-case hexadecimal digits.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace slackline {

// Hash of bytes that come in pieces. Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(absl::string_view bytes);
  // Ends the hash; afterwards only the destructor may be called.
  std::string Finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(absl::string_view bytes);

// Hash of a file's content. NotFound or Unavailable name the path and the
// reason, which may be that it is a pipe or a device.
absl::StatusOr<std::string> Sha256File(const std::string& path);

}  // namespace slackline
