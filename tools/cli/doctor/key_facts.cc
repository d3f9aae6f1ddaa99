#include "tools/cli/doctor/key_facts.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/keys/key_file.h"
#include "common/keys/secret.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kFingerprint[] = "slackline fingerprint";

// As WriteKeyFile() would, with the folders that it needs.
bool CanBeWritten(const fs::path& file) {
  std::error_code ignored;
  fs::path folder = file.parent_path();
  while (!fs::exists(folder, ignored) && folder.has_relative_path())
    folder = folder.parent_path();
  return fs::is_directory(folder, ignored) &&
         access(folder.c_str(), W_OK | X_OK) == 0;
}

}  // namespace

doctor::KeyFacts LookAtKey(const config::ClusterConfig& config,
                           const KeyPlace& place) {
  doctor::KeyFacts facts;
  facts.set_insecure(config.insecure());
  facts.set_given(!place.given.empty());
  facts.set_file(place.file());
  if (facts.insecure() || facts.file().empty()) return facts;
  struct stat about {};
  if (stat(facts.file().c_str(), &about) == 0)
    facts.set_mode(absl::StrFormat("%03o", about.st_mode & 07777u));
  const std::string name = absl::StrCat("key file ", facts.file());
  const absl::StatusOr<keys::Key> key = ReadKeyFile(facts.file());
  const absl::Status usable =
      key.ok() ? JobKeyOf(*key, config.job(), name).status() : key.status();
  facts.set_fingerprint(
      KeyFingerprint(config.job(), facts.file(), absl::Now()));
  if (absl::IsNotFound(usable)) {
    facts.set_can_be_made(!facts.given() && CanBeWritten(facts.file()));
  } else {
    facts.set_error(std::string(usable.message()));
  }
  return facts;
}

std::string KeyFingerprint(const std::string& job, const std::string& file,
                           absl::Time now) {
  const absl::StatusOr<keys::Key> key = ReadKeyFile(file);
  if (!key.ok()) return "";
  const absl::StatusOr<keys::Key> of_job = JobKeyOf(*key, job, file);
  if (!of_job.ok()) return "";
  const bool is_exchanged =
      of_job->has_next() && absl::FromUnixSeconds(of_job->next_from()) <= now;
  Secret counts({});
  if (!Secret::FromHex(
          is_exchanged ? of_job->next().secret() : of_job->secret(), &counts)) {
    return "";
  }
  // What was before says nothing of what will open; what is still to come does.
  std::string purpose = kFingerprint;
  if (of_job->has_next() && !is_exchanged) {
    Secret next({});
    if (!Secret::FromHex(of_job->next().secret(), &next)) return "";
    absl::StrAppend(&purpose, " ", next.Derive(kFingerprint).ToHex(), " ",
                    of_job->next_from());
  }
  constexpr size_t kDigits = 16;
  return counts.Derive(purpose).ToHex().substr(0, kDigits);
}

}  // namespace slackline
