#include "tools/cli/run/run_key.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<RunKey>> RunKey::Make(
    const config::ClusterConfig& config, const KeyPlace& place,
    const std::string& out_dir) {
  SL_ASSIGN_OR_RETURN(const std::optional<KeyOfRun> key,
                      MakeKeyOfRun(config, place));
  if (!key.has_value()) return std::unique_ptr<RunKey>(new RunKey());
  const std::string& job = config.job();
  std::unique_ptr<RunKey> made(new RunKey());
  made->note_ = key->note;
  made->folder_ =
      std::filesystem::absolute(out_dir).lexically_normal().string();
  SL_ASSIGN_OR_RETURN(
      made->credentials_,
      CredentialsFrom(key->key, job, Role::kOperator, "the key of the job"));
  SL_ASSIGN_OR_RETURN(
      const keys::Key worker,
      RoleKeyOf(key->key, job, Role::kWorker, "the key of the job"));
  const auto write = [&](const char* name,
                         const keys::Key& part) -> absl::Status {
    SL_ASSIGN_OR_RETURN(
        TemporaryKeyFile file,
        TemporaryKeyFile::Write(absl::StrCat(made->folder_, "/", name), part));
    made->files_.push_back(std::move(file));
    return absl::OkStatus();
  };
  SL_RETURN_IF_ERROR(write(kJobKeyName, key->key));
  SL_RETURN_IF_ERROR(write(kWorkerKeyName, worker));
  return made;
}

}  // namespace slackline
