#include "tools/experiment/replay_spec.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/delays/delay_trace.h"
#include "common/io/sha256.h"
#include "common/status.h"
#include "tools/experiment/variant_names.h"

namespace slackline {

namespace fs = std::filesystem;

absl::StatusOr<ReplaySpec> ParseReplaySpec(const std::string& spec,
                                           const std::string& folder) {
  if (IsSyntheticSpec(spec)) {
    SL_RETURN_IF_ERROR(ParseSyntheticDelays(spec).status());
    return ReplaySpec{.text = spec, .fingerprint = ""};
  }
  std::error_code error;
  fs::path path =
      fs::absolute(fs::path(folder) / spec, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "run/"
  if (spec.empty() || !fs::is_directory(path, error)) {
    // Names all forms that there are.
    return ParseSyntheticDelays(spec).status();
  }
  ReplaySpec replay{.text = path.string(), .fingerprint = ""};
  for (const fs::path& file : RecordedTraceFiles(path.string())) {
    SL_ASSIGN_OR_RETURN(const std::string hash, Sha256File(file.string()));
    absl::StrAppend(&replay.fingerprint, hash, " ");
  }
  if (replay.fingerprint.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("value is '", spec, "', and ", path.string(),
                     " has no trace-server-*.jsonl; record one with --set "
                     "train.trace=true"));
  }
  return replay;
}

std::string ReplayName(const std::string& spec) {
  const fs::path path = spec;
  return FileSafe(path.has_filename() ? path.filename().string()
                                      : path.parent_path().filename().string());
}

}  // namespace slackline
