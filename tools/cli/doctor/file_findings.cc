#include "tools/cli/doctor/file_findings.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/doctor/copy_lines.h"

namespace slackline {
namespace {

// Logs, metrics and the summary of a run.
constexpr int64_t kRunRoomMin = 1'000'000;
constexpr int64_t kRunRoomAmple = 100'000'000;
// Values and at most two slots of the optimizer.
constexpr int64_t kStateCopies = 3;

std::string FolderFix(const std::string& error, const std::string& folder) {
  if (absl::StrContains(error, "No space left"))
    return absl::StrCat("df -h ", folder, ", and make room");
  if (absl::StrContains(error, "Read-only")) {
    return absl::StrCat("sudo mount -o remount,rw $(findmnt -no TARGET -T ",
                        folder, ")");
  }
  if (absl::StrContains(error, "Permission denied"))
    return absl::StrCat("sudo chown $(id -un) ", folder);
  return absl::StrCat("findmnt -T ", folder);
}

void Share(const doctor::Facts& facts, doctor::Folder::Use use, bool needed,
           const char* check, const char* fix, Findings* findings) {
  if (!needed) return;
  const auto folder_of = [use](const doctor::HostFacts& of) {
    for (const doctor::FolderFacts& folder : of.folder()) {
      if (folder.folder().use() == use) return folder;
    }
    return doctor::FolderFacts();
  };
  const doctor::FolderFacts here = folder_of(facts.here());
  if (!here.error().empty()) {
    findings->Add(doctor::ERROR, "this machine", check,
                  absl::StrCat(here.folder().path(), ": ", here.error()),
                  "it has to be written to", fix);
    return;
  }
  for (const doctor::HostNeed& need : facts.job().host()) {
    const doctor::Host* const host = HostOf(need.name(), facts);
    if (!need.writes_checkpoints() || host == nullptr ||
        !host->unreached().empty()) {
      continue;
    }
    const doctor::FolderFacts there = folder_of(host->facts());
    if (!there.error().empty()) continue;  // FindInFolders() has said it.
    const auto& seen = host->marks_seen().use();
    if (std::find(seen.begin(), seen.end(), use) != seen.end()) {
      findings->Add(
          doctor::OK, need.name(), check,
          absl::StrCat(there.folder().path(), " is that of this machine"));
    } else {
      findings->Add(doctor::ERROR, need.name(), check,
                    absl::StrCat(there.folder().path(), " there is not ",
                                 here.folder().path(), " of this machine"),
                    "all hosts that write there share one folder", fix);
    }
  }
}

}  // namespace

void FindInFolders(const doctor::Job& job, const doctor::HostNeed& need,
                   const doctor::Host& host, Findings* findings) {
  const int64_t state = kStateCopies * job.model_bytes();
  std::set<std::string> bad;
  for (const doctor::FolderFacts& folder : host.facts().folder()) {
    const bool checkpoints =
        folder.folder().use() == doctor::Folder::CHECKPOINTS;
    if (checkpoints && !need.writes_checkpoints()) continue;
    // One place that is full, or cannot be written to, is said once.
    if (!folder.error().empty() && !bad.insert(folder.existing()).second)
      continue;
    const std::string& path = folder.folder().path();
    const char* const check = checkpoints ? "checkpoint folder"
                              : folder.folder().use() == doctor::Folder::RUN
                                  ? "run folder"
                                  : "working folder";
    const std::string other =
        checkpoints ? "or another by --set checkpoint.folder=DIR"
                    : "or another by --out, or --set launch.runs_dir=DIR";
    if (folder.folder().use() == doctor::Folder::WORKING) {
      if (folder.existing() == path) {
        findings->Add(doctor::OK, host.name(), check, path);
      } else {
        findings->Add(doctor::ERROR, host.name(), check,
                      absl::StrCat(path, " is not there"),
                      "programs of workers run where slackline is called",
                      absl::StrCat("on ", host.name(), ": mkdir -p ", path));
      }
      continue;
    }
    const std::string where =
        folder.existing() == path
            ? path
            : absl::StrCat(path, " (to be made in ", folder.existing(), ")");
    if (!folder.error().empty()) {
      findings->Add(doctor::ERROR, host.name(), check,
                    absl::StrCat(where, ": ", folder.error()),
                    "it has to be written to",
                    absl::StrCat("on ", host.name(), ": ",
                                 FolderFix(folder.error(), folder.existing()),
                                 ", ", other));
      continue;
    }
    const int64_t least = checkpoints ? state : kRunRoomMin + job.model_bytes();
    const int64_t ample = checkpoints ? (job.checkpoint_keep() + 1) * state
                                      : kRunRoomAmple + job.model_bytes();
    const std::string value =
        absl::StrCat(where, " has ", BytesWords(folder.free_bytes()), " free");
    const std::string fix =
        absl::StrCat("on ", host.name(), ": df -h ", folder.existing(),
                     ", and make room, ", other);
    if (folder.free_bytes() < least) {
      findings->Add(doctor::ERROR, host.name(), check, value,
                    absl::StrCat("at least ", BytesWords(least), " are needed"),
                    fix);
    } else if (folder.free_bytes() < ample) {
      findings->Add(doctor::WARNING, host.name(), check, value,
                    absl::StrCat(BytesWords(ample), " would do for long"), fix);
    } else {
      findings->Add(doctor::OK, host.name(), check, value);
    }
  }
}

void FindInData(const doctor::Facts& facts, const doctor::HostNeed& need,
                const doctor::Host& host, Findings* findings) {
  if (!need.data()) return;
  const auto is_whole = [](const doctor::HostFacts& of) {
    return of.data_file_size() > 0 &&
           std::all_of(of.data_file().begin(), of.data_file().end(),
                       [](const auto& file) { return file.error().empty(); });
  };
  std::string owner = "this machine";
  const doctor::HostFacts* model =
      is_whole(facts.here()) ? &facts.here() : nullptr;
  for (const doctor::Host& other : facts.host()) {
    if (model != nullptr) break;
    if (!is_whole(other.facts())) continue;
    model = &other.facts();
    owner = other.name();
  }
  const doctor::Job& job = facts.job();
  const bool from_here = owner == "this machine";
  const std::string fix =
      job.engine() == kEngineHere
          ? "slackline data says what is there; name its folder by --data-dir"
          : absl::StrCat(
                from_here ? "" : absl::StrCat("on ", owner, ": "),
                CopyLine(job, {"--checksum"},
                         from_here ? job.data_here() : job.data_there(),
                         host.name(), job.data_there()),
                ", or name its folder there by --set launch.data_dir=DIR");
  for (const doctor::DataFile& file : host.facts().data_file()) {
    if (!file.error().empty()) {
      findings->Add(doctor::ERROR, host.name(), "data", file.error(),
                    "its workers read it", fix);
      return;
    }
  }
  int64_t bytes = 0;
  for (int i = 0; i < host.facts().data_file_size(); ++i) {
    const doctor::DataFile& file = host.facts().data_file(i);
    bytes += std::min(file.bytes(), int64_t{1} << 50);
    if (model == nullptr || i >= model->data_file_size()) continue;
    const doctor::DataFile& same = model->data_file(i);
    const bool is_read = file.hash() != 0 && same.hash() != 0;
    if (file.bytes() == same.bytes() &&
        (!is_read || file.hash() == same.hash())) {
      continue;
    }
    if (file.name() != same.name()) {  // Packed by gzip, or not.
      findings->Add(doctor::NOTE, host.name(), "data",
                    absl::StrCat(file.name(), " is not compared"),
                    absl::StrCat(owner, " has ", same.name()));
      return;
    }
    findings->Add(
        doctor::ERROR, host.name(), "data",
        file.bytes() == same.bytes()
            ? absl::StrCat(file.name(), " has other bytes (hash ",
                           absl::Hex(file.hash(), absl::kZeroPad16), ")")
            : absl::StrCat(file.name(), " has ", file.bytes(), " bytes"),
        file.bytes() == same.bytes()
            ? absl::StrCat(owner, " has ",
                           absl::Hex(same.hash(), absl::kZeroPad16))
            : absl::StrCat(owner, " has ", same.bytes()),
        fix);
    return;
  }
  findings->Add(doctor::OK, host.name(), "data",
                absl::StrCat(host.facts().data_file_size(), " files, ",
                             BytesWords(bytes), ", as on ", owner));
}

void FindShared(const doctor::Facts& facts, Findings* findings) {
  Share(facts, doctor::Folder::CHECKPOINTS, facts.job().shares_checkpoints(),
        "checkpoint folder",
        "name a folder that all of them mount by --set checkpoint.folder=DIR",
        findings);
  Share(facts, doctor::Folder::RUN, facts.job().shares_run_folder(),
        "run folder", "name a folder that all of them mount by --out",
        findings);
}

}  // namespace slackline
