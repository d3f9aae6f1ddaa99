#include "tools/cli/run/run_key.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "common/keys/key_file.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<RunKey>> RunKey::Make(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  SL_ASSIGN_OR_RETURN(const std::optional<keys::Key> key,
                      KeyOfRun(config, place));
  if (!key.has_value())
    return std::unique_ptr<RunKey>(new RunKey("", std::nullopt));
  // Processes on this machine may work in another folder.
  const std::string file =
      std::filesystem::absolute(JobKeyFileOf(out_dir)).string();
  SL_ASSIGN_OR_RETURN(
      Credentials credentials,
      CredentialsFrom(*key, config.job(), Role::kOperator, file));
  unlink(file.c_str());
  SL_RETURN_IF_ERROR(WriteKeyFile(file, *key));
  return std::unique_ptr<RunKey>(
      new RunKey(file, std::move(credentials)));
}

RunKey::RunKey(std::string file, std::optional<Credentials> credentials)
    : file_(std::move(file)), credentials_(std::move(credentials)) {}

RunKey::~RunKey() {
  if (!file_.empty()) unlink(file_.c_str());
}

}  // namespace slackline
