#include "tools/cli/run/by_hand.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/process/member_environment.h"
#include "tools/cli/members/member_launch.h"

namespace slackline {
namespace {

// What one types to start a process: with its environment, if it has one.
std::string LaunchLine(const MemberLaunch& launch) {
  std::vector<std::string> words;
  for (const auto& [name, value] : launch.environment) {
    if (!value.empty()) words.push_back(absl::StrCat(name, "=", value));
  }
  if (!words.empty()) words.insert(words.begin(), "env");
  words.insert(words.end(), launch.command.begin(), launch.command.end());
  return ShellLine(words);
}

// With the key file that --key names, if it names one.
MemberLaunch WithKey(MemberLaunch launch, const std::string& key) {
  if (key.empty()) return launch;
  if (launch.environment.empty()) {
    launch.command.push_back(absl::StrCat("--key=", key));
  } else {
    launch.environment[kKeyVariable] = key;
  }
  return launch;
}

constexpr char kPlacedFile[] = "placed.textproto";

}  // namespace

std::string ByHandText(const RunOptions& options,
                       const config::ClusterConfig& config,
                       const std::vector<std::string>& elsewhere) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  // Servers and workers take no --hosts.
  const bool is_placed = !options.overrides.hosts.empty();
  const std::string file = is_placed ? kPlacedFile : options.config_path;
  const std::string& key = options.key.given;
  const LaunchOptions launches = {
      .bin_dir = options.bin_dir,
      .cluster_file = file,
      .data_dir = options.data_dir.empty() ? "DATA" : options.data_dir,
      .out_dir = options.out_dir.empty() ? "OUT" : options.out_dir,
      .resume = options.resume,
      .any_server_takes_over = AnyServerTakesOver(config),
      .workers = workers};
  std::string text = absl::StrCat(
      absl::StrJoin(elsewhere, ", "), elsewhere.size() == 1 ? " is" : " are",
      " not this machine; `slackline run --on ssh` starts processes there, too "
      "(docs/manual/clusters.md); by hand, ",
      is_placed ? absl::StrCat("write the config with its hosts (the same "
                               "command with --dry-run > ",
                               kPlacedFile, ") and ")
                : "",
      config.insecure() ? ""
      : key.empty()
          ? "have ~/.config/slackline/key of one host on all of "
            "them (`slackline keys init` makes it), and "
          : absl::StrCat("have the key file ", key, " on all of them, and "),
      "start these on their hosts, all with the same config:\n");
  std::string overrides;
  if (!options.overrides.mode.empty()) {
    absl::StrAppend(&overrides, " --mode=", options.overrides.mode);
  }
  if (!options.overrides.delays.empty()) {
    absl::StrAppend(&overrides, " '--delays=", options.overrides.delays, "'");
  }
  for (const std::string& set : options.overrides.sets) {
    absl::StrAppend(&overrides, " '--set=", set, "'");
  }
  const auto add = [&](const std::string& host, const JobProcess& member) {
    absl::StrAppend(&text, "  ", host, ":  ",
                    LaunchLine(WithKey(LaunchOf(launches, member), key)),
                    overrides, "\n");
  };
  for (const ServerProcess& server : ServerProcesses(config)) {
    add(server.host, {.worker = false, .index = server.index});
  }
  for (const WorkerProcess& worker : workers) {
    add(worker.host, {.worker = true, .index = worker.rank});
  }
  std::vector<std::string> follow = {"slackline", "status", file};
  if (!key.empty()) follow.insert(follow.end(), {"--key", key});
  absl::StrAppend(&text, "and follow them with `", ShellLine(follow), "`");
  return text;
}

}  // namespace slackline
