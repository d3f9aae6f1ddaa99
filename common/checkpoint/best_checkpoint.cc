#include "common/checkpoint/best_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/ids.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBestFileBytesMax = 64 << 10;
constexpr size_t kBestNameBytesShown = 64;  // In errors.
constexpr char kCheckpointKey[] = "checkpoint";
constexpr char kClockKey[] = "clock";
constexpr char kEvaluatedAtKey[] = "evaluated_at";
constexpr char kMeasureKey[] = "measure";
constexpr char kValueKey[] = "value";

std::string PathIn(const std::string& root) {
  return absl::StrCat(root, "/", kBestFile);
}

std::string TextOf(const run::BestCheckpoint& best) {
  const nlohmann::ordered_json json = {
      {kCheckpointKey, fs::path(best.folder()).filename().string()},
      {kClockKey, best.clock()},
      {kEvaluatedAtKey, best.evaluated_at()},
      {kMeasureKey, best.measure()},
      {kValueKey, best.value()}};
  return absl::StrCat(json.dump(2), "\n");
}

// A clock under that name; nothing if there is none.
std::optional<int64_t> ClockIn(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  const auto clock = found->get<int64_t>();
  if (clock < 0 || clock > kClockMax) return std::nullopt;
  return clock;
}

std::string StringIn(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || !found->is_string() ? ""
                                                    : found->get<std::string>();
}

// With the manifest of the checkpoint.
absl::StatusOr<run::BestCheckpoint> ReadBestWith(
    const std::string& root, checkpoint::Manifest* manifest) {
  const std::string path = PathIn(root);
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadRegularFile(path, kBestFileBytesMax));
  const auto bad = [&path](const auto&... what) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged: ", what..., "; remove it"));
  };
  const auto json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("it is not a JSON map");
  const std::string name = StringIn(json, kCheckpointKey);
  if (!IsCheckpointName(name)) {
    return bad(kCheckpointKey, " is '", Shortened(name, kBestNameBytesShown),
               "', which is no name of a checkpoint");
  }
  const std::optional<int64_t> clock = ClockIn(json, kClockKey);
  const std::optional<int64_t> evaluated_at = ClockIn(json, kEvaluatedAtKey);
  if (!clock.has_value() || !evaluated_at.has_value())
    return bad(kClockKey, " or ", kEvaluatedAtKey,
               " is not there, or no clock");
  const std::string measure = StringIn(json, kMeasureKey);
  if (measure != MeasureName(config::Checkpoint::ACCURACY) &&
      measure != MeasureName(config::Checkpoint::LOSS)) {
    return bad(kMeasureKey, " is '", Shortened(measure, kBestNameBytesShown),
               "', and not accuracy or loss");
  }
  const auto value = json.find(kValueKey);
  if (value == json.end() || !value->is_number() ||
      !std::isfinite(value->get<double>())) {
    return bad(kValueKey, " is no number");
  }
  run::BestCheckpoint best;
  best.set_folder(absl::StrCat(root, "/", name));
  best.set_clock(*clock);
  best.set_evaluated_at(*evaluated_at);
  best.set_measure(measure);
  best.set_value(value->get<double>());
  absl::StatusOr<checkpoint::Manifest> read = ReadManifest(best.folder());
  if (!read.ok()) {
    return bad("it names ", name,
               ", which is no checkpoint: ", read.status().message());
  }
  if (read->clock() != *clock) {
    return bad("it says that ", name, " is of clock ", *clock,
               ", and its manifest says ", read->clock());
  }
  if (manifest != nullptr) *manifest = *std::move(read);
  return best;
}

bool IsThere(const std::string& root, uint64_t lineage,
             const std::string& folder) {
  const std::vector<CheckpointEntry> entries = CheckpointsIn(root, lineage);
  return std::any_of(
      entries.begin(), entries.end(),
      [&](const CheckpointEntry& entry) { return entry.folder == folder; });
}

}  // namespace

std::string MeasureName(config::Checkpoint::Measure measure) {
  return measure == config::Checkpoint::LOSS ? "loss" : "accuracy";
}

absl::StatusOr<run::BestCheckpoint> ReadBest(const std::string& root) {
  return ReadBestWith(root, nullptr);
}

absl::StatusOr<run::BestCheckpoint> ReadBestOf(
    const std::string& root, uint64_t lineage,
    config::Checkpoint::Measure measure) {
  checkpoint::Manifest manifest;
  SL_ASSIGN_OR_RETURN(run::BestCheckpoint best, ReadBestWith(root, &manifest));
  if (manifest.lineage() != lineage) {
    return absl::FailedPreconditionError(absl::StrCat(
        PathIn(root), " is of another run, of job ", manifest.job(),
        "; give each run a folder of its own in checkpoint { folder: ... }"));
  }
  if (best.measure() != MeasureName(measure)) {
    return absl::InvalidArgumentError(absl::StrCat(
        PathIn(root), " is by ", best.measure(),
        ", and checkpoint.best_by asks for ", MeasureName(measure)));
  }
  return best;
}

absl::StatusOr<std::string> FindBestCheckpoint(const std::string& given) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  if (fs::exists(absl::StrCat(path, "/", kManifestFile), error)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        " is one checkpoint; the folder of a run, or of its checkpoints, has "
        "a best one"));
  }
  std::string looked;
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> roots, RootsAt(path));
  for (const std::string& root : roots) {
    absl::StatusOr<run::BestCheckpoint> best = ReadBest(root);
    if (best.ok()) return best->folder();
    if (!absl::IsNotFound(best.status())) return best.status();
    absl::StrAppend(&looked, looked.empty() ? "neither " : " nor ",
                    PathIn(root));
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no best checkpoint at ", path, ": ", looked,
      " is there; a job has one with checkpoint { best_by: ACCURACY }, once it "
      "was evaluated"));
}

BestKeeper::BestKeeper(std::string root, uint64_t lineage,
                       std::optional<run::BestCheckpoint> earlier)
    : root_(std::move(root)),
      lineage_(lineage),
      evaluation_(earlier),
      best_(std::move(earlier)),
      of_earlier_run_(best_.has_value()) {
  if (best_.has_value()) written_ = TextOf(*best_);
}

void BestKeeper::Keep(const run::BestCheckpoint& evaluation) {
  evaluation_ = evaluation;
  of_earlier_run_ = false;
  Update();
}

void BestKeeper::Update() {
  if (!evaluation_.has_value()) return;
  // What this run does is another model than the one that was evaluated.
  if (of_earlier_run_ && IsThere(root_, lineage_, best_->folder())) return;
  of_earlier_run_ = false;
  best_.reset();
  const auto away = [&](int64_t clock) {
    return std::abs(clock - evaluation_->evaluated_at());
  };
  for (const CheckpointEntry& entry : CheckpointsIn(root_, lineage_)) {
    if (best_.has_value() &&
        std::tuple(away(entry.clock), -entry.clock) >=
            std::tuple(away(best_->clock()), -best_->clock())) {
      continue;
    }
    best_ = *evaluation_;
    best_->set_folder(entry.folder);
    best_->set_clock(entry.clock);
  }
  if (!best_.has_value()) return;
  const std::string text = TextOf(*best_);
  if (text == written_ && error_.ok()) return;
  written_.clear();
  error_ = WriteFileAtomically(PathIn(root_), {text});
  if (error_.ok()) written_ = text;
}

}  // namespace slackline
