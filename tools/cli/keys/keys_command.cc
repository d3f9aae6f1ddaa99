#include "tools/cli/keys/keys_command.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"
#include "common/keys/key_file.h"
#include "common/process/job_key.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {
namespace {

absl::StatusOr<keys::Key> PartOf(const keys::Key& key, const std::string& job,
                                 const std::string& role,
                                 const std::string& name) {
  if (role == "all") return JobKeyOf(key, job, name);
  for (const Role of : {Role::kWorker, Role::kOperator, Role::kReader}) {
    if (role == RoleName(of)) return RoleKeyOf(key, job, of, name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--role: '", role, "' is none of worker, operator, reader and all"));
}

}  // namespace

absl::StatusOr<std::string> InitKey(const InitKeyOptions& options) {
  const std::string file =
      options.file.empty() ? KeyPlaceHere("").own : options.file;
  if (file.empty()) {
    return absl::NotFoundError(
        "this user has no home, where its key would be; name a file with "
        "--key");
  }
  const absl::Status written =
      WriteKeyFile(file, NewUserKey(), /*replace=*/options.force);
  if (absl::IsAlreadyExists(written)) {
    SL_RETURN_IF_ERROR(ReadKeyFile(file).status());
    return absl::StrCat(
        file,
        " is there already, and is left as it is (--force makes a new "
        "one: jobs that run go on with the old one, and need it)\n");
  }
  SL_RETURN_IF_ERROR(written);
  if (!options.file.empty()) {
    return absl::StrCat(file, ": made. Give it to the processes of a job with ",
                        ShellLine({absl::StrCat("--key=", file)}), "\n");
  }
  return absl::StrCat(
      file,
      ": made. Your jobs on this machine use it from now on. Other machines on "
      "which you start processes by hand need the same file, readable by you "
      "alone, for example by\n  ",
      ShellLine({"scp", "-p", file, absl::StrCat("HOST:", file)}),
      "\n`slackline run` takes the key of its job along by itself.\n");
}

absl::StatusOr<std::string> ExportKey(const ExportKeyOptions& options) {
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(ClusterFileOf(options.config));
  if (!config.ok())
    return absl::InvalidArgumentError(config.status().message());
  if (config->insecure()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.config, ": insecure: true: the job has no key"));
  }
  const std::string given = KeyFileOf(options.key, options.config);
  const KeyPlace place = KeyPlaceHere(given);
  const std::string& file = given.empty() ? place.own : given;
  SL_ASSIGN_OR_RETURN(const keys::Key key, ReadKeyFile(file));
  SL_ASSIGN_OR_RETURN(const keys::Key part,
                      PartOf(key, config->job(), options.role,
                             absl::StrCat("key file ", file)));
  if (options.out.empty()) return KeyText(part);
  SL_RETURN_IF_ERROR(WriteKeyFile(options.out, part));
  return absl::StrCat(options.out, ": what ",
                      options.role == "all"
                          ? "all processes of job '"
                          : absl::StrCat("a ", options.role, " of job '"),
                      config->job(), "' hold", options.role == "all" ? "" : "s",
                      "; give it with --key=FILE\n");
}

}  // namespace slackline
