#include "tools/cli/run/run_key.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/keys/key_file.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status Replace(const std::string& folder, const char* name,
                     const keys::Key& key) {
  const std::string file = absl::StrCat(folder, "/", name);
  unlink(file.c_str());
  return WriteKeyFile(file, key);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunKey>> RunKey::Make(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  SL_ASSIGN_OR_RETURN(const std::optional<keys::Key> key,
                      KeyOfRun(config, place));
  if (!key.has_value())
    return std::unique_ptr<RunKey>(new RunKey("", std::nullopt));
  const std::string& job = config.job();
  SL_ASSIGN_OR_RETURN(
      Credentials credentials,
      CredentialsFrom(*key, job, Role::kOperator, "the key of the job"));
  SL_ASSIGN_OR_RETURN(
      const keys::Key worker,
      RoleKeyOf(*key, job, Role::kWorker, "the key of the job"));
  std::unique_ptr<RunKey> made(
      new RunKey(std::filesystem::absolute(out_dir).lexically_normal().string(),
                 std::move(credentials)));
  SL_RETURN_IF_ERROR(Replace(made->folder_, kJobKeyName, *key));
  SL_RETURN_IF_ERROR(Replace(made->folder_, kWorkerKeyName, worker));
  return made;
}

RunKey::RunKey(std::string folder, std::optional<Credentials> credentials)
    : folder_(std::move(folder)), credentials_(std::move(credentials)) {}

RunKey::~RunKey() {
  if (folder_.empty()) return;
  for (const char* const name : {kJobKeyName, kWorkerKeyName})
    unlink(absl::StrCat(folder_, "/", name).c_str());
}

}  // namespace slackline
