#include "common/process/job_key.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/keys/key_file.h"
#include "common/status.h"

namespace slackline {
namespace {

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

absl::Status NoKey(const KeyPlace& place) {
  return absl::NotFoundError(absl::StrCat(
      place.own.empty() ? "this user has no home, where its key would be"
                        : absl::StrCat("there is no key file ", place.own),
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

}  // namespace

KeyPlace KeyPlaceHere(const std::string& given) {
  KeyPlace place = {.given = given};
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string config = variable("XDG_CONFIG_HOME");
  std::string home = variable("HOME");
  if (home.empty()) {
    const passwd* const user = getpwuid(geteuid());
    if (user != nullptr && user->pw_dir != nullptr) home = user->pw_dir;
  }
  if (!config.empty() && config.front() == '/') {
    place.own = absl::StrCat(config, "/slackline/key");
  } else if (!home.empty() && home != "/") {
    place.own = absl::StrCat(home, "/.config/slackline/key");
  }
  return place;
}

std::string JobKeyFileOf(const std::string& run_folder) {
  return (std::filesystem::path(run_folder) / kJobKeyName).string();
}

absl::StatusOr<std::optional<Credentials>> CredentialsHere(
    const config::ClusterConfig& config, Role role, const KeyPlace& place) {
  if (config.insecure()) return std::nullopt;
  if (!place.given.empty()) {
    SL_ASSIGN_OR_RETURN(const keys::Key key, ReadKeyFile(place.given));
    return CredentialsFrom(key, config.job(), role, NameOf(place.given));
  }
  SL_ASSIGN_OR_RETURN(const keys::Key key,
                      UserKey(place, IsOnThisHost(config)));
  return CredentialsFrom(key, config.job(), role, NameOf(place.own));
}

absl::StatusOr<std::optional<keys::Key>> KeyOfRun(
    const config::ClusterConfig& config, const KeyPlace& place) {
  if (config.insecure()) return std::nullopt;
  if (!place.given.empty()) {
    SL_ASSIGN_OR_RETURN(const keys::Key key, ReadKeyFile(place.given));
    return JobKeyOf(key, config.job(), NameOf(place.given));
  }
  const absl::StatusOr<keys::Key> key = UserKey(place, /*may_make=*/true);
  if (key.ok()) return JobKeyOf(*key, config.job(), NameOf(place.own));
  // A key that is there and cannot be used is not passed over.
  if (absl::IsInvalidArgument(key.status()) ||
      absl::IsFailedPrecondition(key.status())) {
    return key.status();
  }
  return JobKeyOf(NewUserKey(), config.job(), "a new key");
}

}  // namespace slackline
