// `slackline keys`: makes a user's key, and gives others their part of it.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/process/job_key.h"

namespace slackline {

struct InitKeyOptions {
  KeyPlace key = {};
  bool force = false;  // In place of one that is there.
};

// Returns what to tell the user.
absl::StatusOr<std::string> InitKey(const InitKeyOptions& options);

struct RotateKeyOptions {
  KeyPlace key = {};
  std::string in = "1m";  // From when on the new one counts.
};

// Plans the exchange of a key for a new one. Returns what to tell the user.
absl::StatusOr<std::string> RotateKey(const RotateKeyOptions& options);

struct ExportKeyOptions {
  std::string config;             // Of the job; a file or the folder of a run.
  std::string role;               // "worker", "operator", "reader" or "all".
  std::optional<int> index = {};  // Of "worker": the one that it is for.
  KeyPlace key = {};
  std::string out = {};  // Empty: to stdout.
  bool force = false;    // In place of a file that is there.
};

// Writes the key, and returns what to tell the user; the key itself where it
// goes to stdout.
absl::StatusOr<std::string> ExportKey(const ExportKeyOptions& options);

}  // namespace slackline
