#include "tools/experiment/replay_spec.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/io/sha256.h"
#include "common/status.h"
#include "tools/experiment/variant_names.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kNames[] = {"constant", "uniform", "geometric",
                                        "straggler"};
constexpr absl::string_view kForms =
    "constant:C, uniform:C, geometric:C, straggler:C (the largest delay in "
    "clocks, at least 0) or the folder of a run with train.trace=true is "
    "required";

// The files of one trace per server, sorted.
std::vector<fs::path> TraceFiles(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "trace-server-") &&
        absl::EndsWith(name, ".jsonl")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<ReplaySpec> ParseReplaySpec(const std::string& spec,
                                           const std::string& folder) {
  const size_t colon = spec.find(':');
  for (const absl::string_view name : kNames) {
    if (absl::string_view(spec).substr(0, colon) != name) continue;
    int32_t delay = 0;
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(absl::string_view(spec).substr(colon + 1), &delay) ||
        delay < 0) {
      break;
    }
    return ReplaySpec{.text = absl::StrCat(name, ":", delay),
                      .fingerprint = ""};
  }
  std::error_code error;
  fs::path path =
      fs::absolute(fs::path(folder) / spec, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // "run/"
  if (spec.empty() || error || !fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("value is '", spec, "'; ", kForms));
  }
  ReplaySpec replay{.text = path.string(), .fingerprint = ""};
  for (const fs::path& file : TraceFiles(path)) {
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
