#include "common/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/block/field_origins.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/manifest.h"
#include "common/config/cluster_config.h"
#include "common/config/parse_text.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/status.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kStepPrefix[] = "step-";
constexpr char kFolderOfRun[] = "checkpoints";

std::string StepName(int64_t clock) {
  return absl::StrFormat("%s%08d", kStepPrefix, clock);
}

// Of step-<digits>; nothing for other names.
std::optional<int64_t> StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kStepPrefix) || name.empty() ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &step)) {
    return std::nullopt;
  }
  return step;
}

std::string PartialPrefix(uint64_t run) {
  return absl::StrFormat(".partial-%016x-", run);
}

absl::Status PathError(absl::string_view attempt, const std::string& path,
                       const std::error_code& error) {
  return absl::UnavailableError(
      absl::StrCat(attempt, " ", path, ": ", error.message()));
}

// Names in a folder; none if there is no such folder.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (const fs::directory_iterator end; !error && at != end;
       at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return PathError("list", folder, error);
  std::sort(names.begin(), names.end());
  return names;
}

// A folder, or something that cannot be looked at.
bool MayBeFolder(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  return type == fs::file_type::directory || type == fs::file_type::none;
}

// A folder step-* of a root.
struct Candidate {
  std::string path;
  int64_t step = 0;
  absl::StatusOr<checkpoint::Manifest> manifest;
};

// The larger, the newer.
std::tuple<bool, int64_t, int64_t> OrderOf(const Candidate& candidate) {
  const bool ok = candidate.manifest.ok();
  return {ok, ok ? candidate.manifest->sequence() : 0, candidate.step};
}

// The newest first; behind them those without a manifest that can be read.
absl::StatusOr<std::vector<Candidate>> CandidatesIn(const std::string& root) {
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(root));
  std::vector<Candidate> all;
  for (const std::string& name : names) {
    const std::optional<int64_t> step = StepOf(name);
    std::string path = absl::StrCat(root, "/", name);
    if (!step.has_value() || !MayBeFolder(path)) continue;
    absl::StatusOr<checkpoint::Manifest> manifest = ReadManifest(path);
    all.push_back({std::move(path), *step, std::move(manifest)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return OrderOf(a) > OrderOf(b);
                   });
  return all;
}

// A file that a manifest names, as far as can be seen without reading it.
// `File` is checkpoint::Part or checkpoint::Kept.
template <typename File>
absl::Status CheckThere(const std::string& folder, const File& file) {
  const std::string path = absl::StrCat(folder, "/", file.file());
  std::error_code error;
  const uintmax_t bytes = fs::file_size(path, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(
        "look for ", path, ": ", error.message(),
        "; all processes that write to it need the same folder: on several "
        "hosts, let checkpoint { folder: ... } be one that they share"));
  }
  if (bytes != static_cast<uintmax_t>(file.bytes())) {
    return absl::DataLossError(absl::StrCat(path, " has ", bytes, " bytes; ",
                                            file.bytes(), " were written"));
  }
  return absl::OkStatus();
}

absl::Status CheckFilesThere(const std::string& folder,
                             const checkpoint::Manifest& manifest) {
  for (const checkpoint::Part& part : manifest.part())
    SL_RETURN_IF_ERROR(CheckThere(folder, part));
  for (const checkpoint::Kept& kept : manifest.kept()) {
    if (!kept.file().empty()) SL_RETURN_IF_ERROR(CheckThere(folder, kept));
    if (kept.has_residuals())
      SL_RETURN_IF_ERROR(CheckThere(folder, kept.residuals()));
  }
  return absl::OkStatus();
}

// Gives `from` the name `to`. A folder that is there already is put aside in
// one step where the file system can do that, and removed.
absl::Status MoveInto(const std::string& from, const std::string& to,
                      const std::string& aside) {
  if (::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  const int error_number = errno;
  if (error_number != EEXIST && error_number != ENOTEMPTY)
    return PathError(absl::StrCat("rename ", from, " to"), to,
                     {error_number, std::generic_category()});
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(),
                  RENAME_EXCHANGE) == 0) {
    return absl::OkStatus();
  }
  std::error_code error;
  fs::remove_all(aside, error);
  fs::rename(to, aside, error);
  if (error) return PathError(absl::StrCat("rename ", to, " to"), aside, error);
  fs::rename(from, to, error);
  if (error) {
    std::error_code ignored;
    fs::rename(aside, to, ignored);
    return PathError(absl::StrCat("rename ", from, " to"), to, error);
  }
  return absl::OkStatus();
}

// What a run has left behind, but for what is of later cuts.
void RemoveRemains(const std::string& root, uint64_t run, int32_t cut) {
  std::error_code ignored;
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(root);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    absl::string_view rest(name);
    if (!absl::ConsumePrefix(&rest, PartialPrefix(run))) continue;
    int32_t number = 0;
    if (!absl::SimpleAtoi(rest, &number) || number <= cut)
      fs::remove_all(absl::StrCat(root, "/", name), ignored);
  }
}

// But for the checkpoint `written`, of this sequence, and what is newer.
void RemoveOld(const std::string& root, uint64_t run, int32_t cut,
               const std::string& written, const checkpoint::Manifest& manifest,
               int keep, const std::string& best, const MayChange& may_change) {
  const std::string prefix = absl::StrCat(root, "/", PartialPrefix(run));
  std::error_code ignored;
  int kept = 1;
  const absl::StatusOr<std::vector<Candidate>> candidates = CandidatesIn(root);
  if (!candidates.ok()) return;
  for (const Candidate& candidate : *candidates) {
    if (candidate.path == written || !candidate.manifest.ok() ||
        candidate.manifest->lineage() != manifest.lineage() ||
        candidate.manifest->sequence() >= manifest.sequence()) {
      continue;
    }
    if (kept < keep) {
      kept += CheckFilesThere(candidate.path, *candidate.manifest).ok();
      continue;
    }
    if (candidate.path == best) continue;
    if (may_change && !may_change()) return;
    // A folder without some of its files must not look like a checkpoint.
    const std::string aside =
        absl::StrCat(prefix, "old-", StepName(candidate.step));
    std::error_code error;
    fs::rename(candidate.path, aside, error);
    if (!error) fs::remove_all(aside, ignored);
  }
  RemoveRemains(root, run, cut);
}

// The first of `candidates`, the newest ones first, that is `of_ours` and can
// be used; nullptr: there is none. `*bad` gets a sentence for each newer one.
std::unique_ptr<StoredCheckpoint> FirstUsable(
    const std::vector<Candidate>& candidates, const CheckpointFilter& of_ours,
    std::vector<std::string>* bad) {
  std::unique_ptr<StoredCheckpoint> found;
  for (const Candidate& candidate : candidates) {
    absl::Status status = candidate.manifest.status();
    if (status.ok()) {
      // Older than the one that is found, or somebody else's.
      if (found != nullptr || !of_ours(*candidate.manifest)) continue;
      auto stored = StoredCheckpoint::Open(candidate.path);
      status = stored.status();
      if (status.ok()) found = *std::move(stored);
    }
    // Without a manifest nobody knows when it was completed.
    if (!status.ok()) {
      bad->push_back(absl::StrCat("checkpoint ", candidate.path,
                                  " cannot be used: ", status.message()));
    }
  }
  return found;
}

// `where` completes "the checkpoints".
absl::Status NoneUsable(absl::string_view where,
                        const std::vector<std::string>& bad) {
  return absl::DataLossError(absl::StrCat(
      bad.size() == 1
          ? "the only checkpoint "
          : absl::StrCat("none of the ", bad.size(), " checkpoints "),
      where, bad.size() == 1 ? " cannot be used; " : " can be used; ",
      absl::StrJoin(bad, "; ")));
}

// The folder of checkpoints that the config of a run names, which stands in the
// run's folder; empty: it names none, or there is no such config.
absl::StatusOr<std::string> FolderOfConfigIn(const std::string& path) {
  const std::string file = absl::StrCat(path, "/cluster.textproto");
  const absl::StatusOr<std::string> text =
      ReadRegularFile(file, kConfigFileBytesMax);
  if (absl::IsNotFound(text.status())) return "";
  if (!text.ok()) {
    return Annotate(text.status(),
                    absl::StrCat("the config of the run in ", path,
                                 " may name the folder of its checkpoints (or "
                                 "name that folder itself)"));
  }
  config::ClusterConfig config;
  FieldOrigins origins(file);
  if (!ParseConfigText(*text, file, &config, &origins).ok()) return "";
  return config.checkpoint().folder();
}

}  // namespace

std::string CheckpointRoot(const config::ClusterConfig& config,
                           const std::string& out) {
  if (!config.checkpoint().folder().empty())
    return config.checkpoint().folder();
  return out.empty() ? "" : absl::StrCat(out, "/", kFolderOfRun);
}

std::string PartialFolder(const std::string& root, uint64_t run, int32_t cut) {
  return absl::StrCat(root, "/", PartialPrefix(run), cut);
}

absl::StatusOr<std::string> CompleteCheckpoint(
    const std::string& root, uint64_t run, int32_t cut,
    const checkpoint::Manifest& manifest, int keep, BestKeeper* best,
    const MayChange& may_change) {
  const std::string partial = PartialFolder(root, run, cut);
  const auto check = [&]() -> absl::Status {
    if (!may_change || may_change()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", manifest.clock(), " stays in ",
                     partial, ": another coordinator may lead the job by now"));
  };
  SL_RETURN_IF_ERROR(check());
  SL_RETURN_IF_ERROR(CheckFilesThere(partial, manifest));
  checkpoint::Manifest numbered = manifest;
  numbered.set_sequence(1);
  SL_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                      CandidatesIn(root));
  for (const Candidate& candidate : candidates) {
    if (!candidate.manifest.ok()) continue;
    numbered.set_sequence(
        std::max(numbered.sequence(), candidate.manifest->sequence() + 1));
  }
  const std::string folder =
      absl::StrCat(root, "/", StepName(manifest.clock()));
  if (const auto there = ReadManifest(folder);
      there.ok() && there->lineage() != manifest.lineage()) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, " is a checkpoint of another run, of job ", there->job(),
        "; give each run a folder of its own in checkpoint { folder: ... }"));
  }
  SL_RETURN_IF_ERROR(WriteManifest(partial, numbered));
  SL_RETURN_IF_ERROR(SyncFolder(partial));
  SL_RETURN_IF_ERROR(check());
  SL_RETURN_IF_ERROR(
      MoveInto(partial, folder,
               absl::StrCat(root, "/", PartialPrefix(run), "replaced")));
  SL_RETURN_IF_ERROR(SyncFolder(root));
  SyncFolder(fs::path(root).parent_path().string()).IgnoreError();
  std::string best_folder;
  // It is there, and that is all that is sure.
  if (!check().ok()) return folder;
  if (best != nullptr) {
    best->Update();
    if (best->best().has_value()) best_folder = best->best()->folder();
  }
  RemoveOld(root, run, cut, folder, numbered, keep, best_folder, may_change);
  return folder;
}

void RemovePartial(const std::string& root, uint64_t run, int32_t cut) {
  RemoveRemains(root, run, cut);
}

bool IsCheckpointName(const std::string& name) {
  return StepOf(name).has_value();
}

std::vector<CheckpointEntry> CheckpointsIn(const std::string& root,
                                           uint64_t lineage) {
  std::vector<CheckpointEntry> entries;
  const absl::StatusOr<std::vector<Candidate>> candidates = CandidatesIn(root);
  if (!candidates.ok()) return entries;
  for (const Candidate& candidate : *candidates) {
    if (candidate.manifest.ok() && candidate.manifest->lineage() == lineage &&
        CheckFilesThere(candidate.path, *candidate.manifest).ok()) {
      entries.push_back({candidate.path, candidate.manifest->clock()});
    }
  }
  return entries;
}

absl::StatusOr<std::vector<std::string>> RootsAt(const std::string& path) {
  std::vector<std::string> roots = {path,
                                    absl::StrCat(path, "/", kFolderOfRun)};
  SL_ASSIGN_OR_RETURN(std::string named, FolderOfConfigIn(path));
  if (!named.empty()) roots.push_back(std::move(named));
  return roots;
}

absl::StatusOr<std::unique_ptr<StoredCheckpoint>> OpenCheckpoint(
    const std::string& given, std::vector<std::string>* passed_over) {
  std::string path = given;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  const std::string manifest = absl::StrCat(path, "/", kManifestFile);
  if (fs::exists(manifest, error)) return StoredCheckpoint::Open(path);
  if (!fs::is_directory(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(path,
                     " is no folder; a checkpoint, a folder of checkpoints, or "
                     "that of a run is required"));
  }
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> roots, RootsAt(path));
  std::string root;
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < roots.size() && candidates.empty(); ++i) {
    root = roots[i];
    SL_ASSIGN_OR_RETURN(candidates, CandidatesIn(root));
  }
  if (candidates.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "there is no checkpoint at ", path, ": neither ", manifest,
        ", nor a folder ", kStepPrefix, "* in ", absl::StrJoin(roots, " or "),
        "; a run with checkpoint { folder: ... } has them there"));
  }
  std::vector<std::string> bad;
  std::unique_ptr<StoredCheckpoint> found = FirstUsable(
      candidates, [](const auto&) { return true; }, &bad);
  if (found == nullptr) return NoneUsable(absl::StrCat("in ", root), bad);
  passed_over->insert(passed_over->end(), bad.begin(), bad.end());
  return found;
}

bool HasCheckpoint(const std::string& root, const CheckpointFilter& of_ours) {
  const absl::StatusOr<std::vector<Candidate>> candidates = CandidatesIn(root);
  return candidates.ok() && std::any_of(candidates->begin(), candidates->end(),
                                        [&](const Candidate& candidate) {
                                          return candidate.manifest.ok() &&
                                                 of_ours(*candidate.manifest);
                                        });
}

absl::StatusOr<std::unique_ptr<StoredCheckpoint>> CheckpointToGoOnFrom(
    const std::string& root, const CheckpointFilter& of_ours,
    const std::string& began_with, std::vector<std::string>* passed_over) {
  SL_ASSIGN_OR_RETURN(const std::vector<Candidate> candidates,
                      CandidatesIn(root));
  std::vector<std::string> bad;
  std::unique_ptr<StoredCheckpoint> found =
      FirstUsable(candidates, of_ours, &bad);
  if (found == nullptr && !began_with.empty()) {
    auto stored = StoredCheckpoint::Open(began_with);
    if (stored.ok()) {
      found = *std::move(stored);
    } else {
      bad.push_back(absl::StrCat("checkpoint ", began_with,
                                 ", with which the job began, cannot be used: ",
                                 stored.status().message()));
    }
  }
  if (found == nullptr && !bad.empty()) {
    return Annotate(
        NoneUsable(absl::StrCat("of the job in ", root), bad),
        "the job does not begin anew by itself, since it had checkpoints (to "
        "begin anew, move their folders away, or choose another --out)");
  }
  passed_over->insert(passed_over->end(), bad.begin(), bad.end());
  return found;
}

}  // namespace slackline
