#include "tools/cli/members/member_launch.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"
#include "common/process/job_key.h"
#include "common/process/member_environment.h"
#include "common/status.h"
#include "tools/cli/installed.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr char kServerName[] = "slackline_server";
constexpr char kWorkerName[] = "slackline_worker";

}  // namespace

std::string MemberKeyFile(const LaunchOptions& options,
                          const JobProcess& member) {
  if (options.key_folder.empty()) return "";
  const std::string name = !member.worker ? kJobKeyName
                           : options.key_of_workers.empty()
                               ? WorkerKeyName(member.index)
                               : options.key_of_workers;
  return absl::StrCat(options.key_folder, "/", name);
}

MemberLaunch LaunchOf(const LaunchOptions& options, const JobProcess& member) {
  const std::string& own =
      member.worker ? options.workers[member.index].command : std::string();
  if (!own.empty()) {
    const auto words = SplitShellLine(own);
    SL_CHECK(words.ok(), "the config's checks have seen the command");
    return {.command = *words,
            .environment = {{kClusterVariable, options.cluster_file},
                            {kIndexVariable, absl::StrCat(member.index)},
                            {kOutVariable, options.out_dir},
                            {kDataDirVariable, options.data_dir},
                            {kKeyVariable, MemberKeyFile(options, member)}}};
  }
  MemberLaunch launch = {
      .command = {absl::StrCat(options.bin_dir, "/",
                               member.worker ? kWorkerName : kServerName),
                  absl::StrCat("--cluster=", options.cluster_file),
                  absl::StrCat("--index=", member.index)},
      .environment = {}};
  if (member.worker) {
    // With nothing behind the "=" the next word would be its value.
    if (!options.data_dir.empty())
      launch.command.push_back(absl::StrCat("--data-dir=", options.data_dir));
  } else if (!options.resume.empty()) {
    launch.command.push_back(absl::StrCat("--resume=", options.resume));
  }
  launch.command.push_back(absl::StrCat("--out=", options.out_dir));
  if (const std::string key = MemberKeyFile(options, member); !key.empty())
    launch.command.push_back(absl::StrCat("--key=", key));
  if (member.worker) return launch;
  if (options.new_run && member.index == 0)
    launch.command.emplace_back("--new-run");
  if (options.recover && options.any_server_takes_over && member.index != 0)
    launch.command.emplace_back("--recover");
  return launch;
}

absl::Status CheckWorkersHavePrograms(const config::ClusterConfig& config) {
  for (int i = 0; i < config.worker_size(); ++i) {
    if (config.worker(i).has_command() || config.has_model()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker[", i,
        "].command: is missing; the config has no model and data, so its "
        "workers are programs of their own: name the program there, or after "
        "--, as in slackline run CONFIG -- python3 train.py"));
  }
  return absl::OkStatus();
}

absl::Status CheckPrograms(const std::string& bin_dir,
                           const config::ClusterConfig& config) {
  SL_RETURN_IF_ERROR(CheckInstalled(bin_dir, kServerName));
  SL_RETURN_IF_ERROR(CheckWorkersHavePrograms(config));
  for (int i = 0; i < config.worker_size(); ++i) {
    if (!config.worker(i).has_command()) {
      SL_RETURN_IF_ERROR(CheckInstalled(bin_dir, kWorkerName));
      continue;
    }
    const auto words = SplitShellLine(config.worker(i).command());
    SL_CHECK(words.ok(), "the config's checks have seen the command");
    SL_RETURN_IF_ERROR(Annotate(FindProgram(words->front()).status(),
                                absl::StrCat("worker[", i, "].command")));
  }
  return absl::OkStatus();
}

MemberLaunch RelaunchOf(LaunchOptions options, const JobProcess& member) {
  options.resume.clear();  // The checkpoint may be gone by now.
  options.new_run = false;
  options.recover = true;
  return LaunchOf(options, member);
}

std::vector<JobProcess> MembersOf(const LaunchOptions& options) {
  std::vector<JobProcess> members;
  for (int i = 0; i < options.servers; ++i)
    members.push_back({.worker = false, .index = i});
  for (int i = 0; i < static_cast<int>(options.workers.size()); ++i)
    members.push_back({.worker = true, .index = i});
  return members;
}

bool IsForked(const LaunchOptions& options, const JobProcess& member) {
  return member.worker && options.workers[member.index].command.empty();
}

}  // namespace slackline
