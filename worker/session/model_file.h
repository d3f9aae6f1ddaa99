// A model as a file that others can read.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

// Writes all tables and the companions to `path` in safetensors format, with
// `metadata`; nothing if `path` is empty. Returns the sha256 of the tables, as
// in a summary. On failure an older file stays.
absl::StatusOr<std::string> WriteModelFile(
    ParameterMemory& parameters, const std::string& path,
    const std::map<std::string, std::string>& metadata);

}  // namespace slackline
