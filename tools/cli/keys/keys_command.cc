#include "tools/cli/keys/keys_command.h"

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/keys/key_file.h"
#include "common/process/job_key.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/cli/job/job_connection.h"

namespace slackline {
namespace {

// Whom the key is for; nullopt: all of the job.
absl::StatusOr<std::optional<KeyHolder>> HolderOf(
    const ExportKeyOptions& options, int workers) {
  if (options.index.has_value() && options.role != RoleName(Role::kWorker)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--index: is given with --role ", options.role,
                     "; worker alone has one"));
  }
  if (options.index.has_value() &&
      (*options.index < 0 || *options.index >= workers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--index: value is ", *options.index,
                     ", the config has workers 0 to ", workers - 1));
  }
  if (options.role == "all") return std::nullopt;
  for (const Role of : {Role::kWorker, Role::kOperator, Role::kReader}) {
    if (options.role != RoleName(of)) continue;
    KeyHolder holder = of;
    if (options.index.has_value()) holder.rank = Rank{*options.index};
    return holder;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--role: '", options.role,
                   "' is none of worker, operator, reader and all"));
}

absl::StatusOr<std::string> FileOf(const KeyPlace& place) {
  if (!place.file().empty()) return place.file();
  return absl::NotFoundError(
      "this user has no home, where its key would be; name a file with --key");
}

std::string CopyLine(const std::string& file) {
  return ShellLine({"scp", "-p", file, absl::StrCat("HOST:", file)});
}

// Less, and a process may not have looked at its file by then.
constexpr absl::Duration kRotateInMin = absl::Seconds(5);
constexpr absl::Duration kRotateInMax = absl::Hours(24);

}  // namespace

absl::StatusOr<std::string> InitKey(const InitKeyOptions& options) {
  SL_ASSIGN_OR_RETURN(const std::string file, FileOf(options.key));
  const absl::Status written =
      WriteKeyFile(file, NewUserKey(), /*replace=*/options.force);
  if (absl::IsAlreadyExists(written)) {
    SL_RETURN_IF_ERROR(ReadKeyFile(file).status());
    return absl::StrCat(
        file,
        " is there already, and is left as it is (`slackline keys rotate` "
        "exchanges it, also for jobs that run; --force makes a new one, and "
        "jobs that run go on with the old one, and need it)\n");
  }
  SL_RETURN_IF_ERROR(written);
  if (!options.key.given.empty()) {
    return absl::StrCat(file, ": made. Give it to the processes of a job with ",
                        ShellLine({absl::StrCat("--key=", file)}), "\n");
  }
  return absl::StrCat(
      file,
      ": made. Your jobs on this machine use it from now on. Other machines on "
      "which you start processes by hand need the same file, readable by you "
      "alone, for example by\n  ",
      CopyLine(file),
      "\n`slackline run` takes the key of its job along by itself.\n");
}

absl::StatusOr<std::string> RotateKey(const RotateKeyOptions& options) {
  SL_ASSIGN_OR_RETURN(std::string file, FileOf(options.key));
  // Behind a link, so that all who share the file see it.
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(file, error);
  if (!error) file = target.string();
  absl::Duration in;
  if (!absl::ParseDuration(options.in, &in) || in < kRotateInMin ||
      in > kRotateInMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--in: '", options.in, "' is no time from ",
        absl::FormatDuration(kRotateInMin), " to ",
        absl::FormatDuration(kRotateInMax), ", such as 30s or 5m"));
  }
  const absl::StatusOr<keys::Key> key = ReadKeyFile(file);
  if (absl::IsNotFound(key.status())) {
    return absl::NotFoundError(absl::StrCat(
        "there is no key file ", file,
        ", so there is nothing to exchange: your first job makes it, or "
        "`slackline keys init`; --key names another file"));
  }
  SL_RETURN_IF_ERROR(key.status());
  const absl::Time now = absl::Now();
  const absl::StatusOr<keys::Key> rotated = WithNewKey(*key, now, now + in);
  if (!rotated.ok()) {
    return Annotate(rotated.status(), absl::StrCat("key file ", file));
  }
  SL_RETURN_IF_ERROR(WriteKeyFile(file, *rotated, /*replace=*/true));
  return absl::StrCat(
      file, ": from ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S",
                       absl::FromUnixSeconds(rotated->next_from()),
                       absl::LocalTimeZone()),
      " on (in ", absl::FormatDuration(in),
      ") a new key counts, and the old one nowhere any more. Jobs that "
      "`slackline run` has started with this file go over to it by "
      "themselves, and so do processes that were started by hand on this "
      "machine. Other machines with such processes need this file before "
      "then:\n  ",
      CopyLine(file),
      "\nA job that `slackline run --on kubernetes` has started gets it by a "
      "new Secret (docs/manual/security.md). Parts that `slackline keys "
      "export` has made of this file are to be made again, by the same command "
      "with --force.\n");
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
  SL_ASSIGN_OR_RETURN(const std::string file,
                      FileOf(KeyPlaceOf(options.key, options.config)));
  SL_ASSIGN_OR_RETURN(
      const std::optional<KeyHolder> holder,
      HolderOf(options, static_cast<int>(WorkerProcesses(*config).size())));
  SL_ASSIGN_OR_RETURN(const keys::Key key, ReadKeyFile(file));
  const std::string name = absl::StrCat("key file ", file);
  SL_ASSIGN_OR_RETURN(const keys::Key part,
                      holder.has_value()
                          ? RoleKeyOf(key, config->job(), *holder, name)
                          : JobKeyOf(key, config->job(), name));
  if (options.out.empty()) return KeyText(part);
  const absl::Status written = WriteKeyFile(options.out, part, options.force);
  if (absl::IsAlreadyExists(written)) {
    return absl::AlreadyExistsError(
        absl::StrCat("--out: ", options.out,
                     " is there already; --force writes in place of it"));
  }
  SL_RETURN_IF_ERROR(written);
  return absl::StrCat(options.out, ": what ",
                      holder.has_value() ? holder->ToString() : "all processes",
                      " of job '", config->job(), "' hold",
                      holder.has_value() ? "s" : "",
                      "; give it with --key=FILE\n");
}

}  // namespace slackline
