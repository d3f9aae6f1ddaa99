#include "common/process/job_key.h"

#include <sys/stat.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config/cluster_config.h"
#include "common/keys/key_file.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr char kWorkerKeyBegins[] = "worker-";
constexpr char kWorkerKeyEnds[] = ".key";

bool IsOnThisHost(const config::ClusterConfig& config) {
  if (!IsLoopback(config.coordinator().host())) return false;
  for (const ServerProcess& server : ServerProcesses(config))
    if (!IsLoopback(server.host)) return false;
  for (const WorkerProcess& worker : WorkerProcesses(config))
    if (!IsLoopback(worker.host)) return false;
  return true;
}

std::string NameOf(const std::string& file) {
  return absl::StrCat("key file ", file);
}

// A key that somebody names is to be used.
absl::Status CheckWanted(const config::ClusterConfig& config,
                         const KeyPlace& place) {
  if (!config.insecure() || place.given.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--key: ", place.given,
      ", and the config has insecure: true, with which the job has no key; "
      "leave out one of the two"));
}

absl::Status NoKey(const KeyPlace& place) {
  if (place.own.empty()) {
    return absl::NotFoundError(
        "this user has no home, where the key of its jobs would be; make one "
        "with `slackline keys init --key FILE`, and name it with --key=FILE; "
        "insecure: true does without");
  }
  return absl::NotFoundError(absl::StrCat(
      "there is no key file ", place.own,
      "; the processes of a job on several hosts need the same one: make it "
      "with `slackline keys init` and copy it to each host (mode 600), or name "
      "one with --key=FILE; insecure: true does without, on a network that you "
      "trust"));
}

absl::StatusOr<keys::Key> UserKey(const KeyPlace& place, bool may_make) {
  if (place.own.empty()) return NoKey(place);
  if (may_make) return ReadOrMakeUserKey(place.own);
  absl::StatusOr<keys::Key> key = ReadKeyFile(place.own);
  if (absl::IsNotFound(key.status())) return NoKey(place);
  return key;
}

// Of a WorkerKeyName(); nullopt: it is none.
std::optional<int> RankOfKeyName(absl::string_view name) {
  int rank = 0;
  if (!absl::ConsumePrefix(&name, kWorkerKeyBegins) ||
      !absl::ConsumeSuffix(&name, kWorkerKeyEnds) ||
      !absl::SimpleAtoi(name, &rank) || rank < 0) {
    return std::nullopt;
  }
  return rank;
}

}  // namespace

std::string WorkerKeyName(int rank) {
  return absl::StrCat(kWorkerKeyBegins, rank, kWorkerKeyEnds);
}

bool IsKeyName(absl::string_view name) {
  return absl::StartsWith(name, kJobKeyName) ||
         (absl::StartsWith(name, kWorkerKeyBegins) &&
          absl::EndsWith(name, kWorkerKeyEnds));
}

std::string JobKeyFileOf(const std::string& run_folder) {
  return (std::filesystem::path(run_folder) / kJobKeyName).string();
}

void RemoveKeysOfWorkersFrom(const std::string& run_folder, int rank) {
  std::error_code error;
  std::vector<std::filesystem::path> found;
  std::filesystem::directory_iterator entry(run_folder, error);
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    const std::optional<int> of =
        RankOfKeyName(entry->path().filename().string());
    if (of.has_value() && *of >= rank) found.push_back(entry->path());
  }
  for (const std::filesystem::path& key : found)
    std::filesystem::remove(key, error);
}

absl::StatusOr<std::optional<KeySource>> KeysHere(
    const config::ClusterConfig& config, const KeyHolder& holder,
    const KeyPlace& place) {
  SL_RETURN_IF_ERROR(CheckWanted(config, place));
  if (config.insecure()) return std::nullopt;
  const bool is_given = !place.given.empty();
  SL_ASSIGN_OR_RETURN(const keys::Key key,
                      is_given ? ReadKeyFile(place.given)
                               : UserKey(place, IsOnThisHost(config)));
  const std::string& file = place.file();
  const int workers = static_cast<int>(WorkerProcesses(config).size());
  SL_ASSIGN_OR_RETURN(KeyPlan plan, KeyPlanFrom(key, config.job(), holder,
                                                NameOf(file), workers));
  // It is looked at later, too, wherever the process works then.
  return KeySource{.file = std::filesystem::absolute(file).string(),
                   .job = config.job(),
                   .holder = holder,
                   .workers = workers,
                   .plan = std::move(plan)};
}

absl::StatusOr<std::optional<KeyOfRun>> MakeKeyOfRun(
    const config::ClusterConfig& config, const KeyPlace& place) {
  SL_RETURN_IF_ERROR(CheckWanted(config, place));
  if (config.insecure()) return std::nullopt;
  const std::string& file = place.file();
  absl::StatusOr<keys::Key> key = place.given.empty()
                                      ? UserKey(place, /*may_make=*/true)
                                      : ReadKeyFile(place.given);
  KeyOfRun of_run;
  struct stat about {};
  // One that is there and cannot be used is not passed over.
  if (!key.ok() && place.given.empty() &&
      (file.empty() || lstat(file.c_str(), &about) != 0)) {
    of_run.note = absl::StrCat(
        "this run has a key of its own, since none can be kept for this user (",
        key.status().message(), "): commands reach it by its folder");
    key = NewUserKey();
  } else {
    of_run.file = std::filesystem::absolute(file).string();
  }
  SL_RETURN_IF_ERROR(key.status());
  SL_ASSIGN_OR_RETURN(of_run.key, JobKeyOf(*key, config.job(), NameOf(file)));
  return of_run;
}

}  // namespace slackline
