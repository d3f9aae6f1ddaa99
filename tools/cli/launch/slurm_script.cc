#include "tools/cli/launch/slurm_script.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/status.h"

namespace slackline {
namespace {

struct HostLoad {
  int cpus = 0;
  int gpus = 0;
};

std::map<std::string, HostLoad> LoadOfHosts(
    const config::ClusterConfig& config) {
  std::map<std::string, HostLoad> loads;
  for (const ServerProcess& server : ServerProcesses(config))
    loads[server.host].cpus += server.threads;
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    loads[worker.host].cpus += worker.threads;
    if (worker.gpu >= 0) ++loads[worker.host].gpus;
  }
  return loads;
}

// Slurm looks at time limits once a minute.
constexpr absl::Duration kSignalEarlierMax = absl::Minutes(1);

// The time limit must leave some time before the warning: else a job that is
// queued again would be told to end at once, each time.
absl::Status CheckTime(const config::Slurm& slurm) {
  const std::optional<absl::Duration> limit = SlurmTime(slurm.time());
  const absl::Duration before =
      absl::Seconds(slurm.warning_seconds()) + kSignalEarlierMax;
  if (!limit.has_value() || *limit >= before) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "launch.slurm.time (--time): value is ", slurm.time(), ", which is ",
      absl::FormatDuration(*limit), "; the job is told to end ",
      slurm.warning_seconds(),
      " s before that (launch.slurm.warning_seconds), and up to a minute "
      "earlier: at least ",
      absl::FormatDuration(before), " is required, or a shorter warning"));
}

// In the name of an output file '%' begins a pattern.
std::string WithoutPatterns(const std::string& path) {
  return absl::StrReplaceAll(path, {{"%", "%%"}});
}

}  // namespace

std::optional<absl::Duration> SlurmTime(absl::string_view text) {
  const std::vector<absl::string_view> halves =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  const bool has_days = halves.size() == 2;
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(halves.back(), ':')) {
    if (!absl::SimpleAtoi(part, &numbers.emplace_back()) || numbers.back() < 0)
      return std::nullopt;
  }
  int64_t days = 0;
  if (numbers.size() > 3 ||
      (has_days && (!absl::SimpleAtoi(halves.front(), &days) || days < 0))) {
    return std::nullopt;
  }
  // Without days: minutes, minutes:seconds, hours:minutes:seconds.
  if (!has_days && numbers.size() < 3) numbers.insert(numbers.begin(), 0);
  numbers.resize(3, 0);
  return absl::Hours(24 * days + numbers[0]) + absl::Minutes(numbers[1]) +
         absl::Seconds(numbers[2]);
}

SlurmNeeds NeedsOf(const config::ClusterConfig& config) {
  const std::map<std::string, HostLoad> loads = LoadOfHosts(config);
  SlurmNeeds needs = {.nodes = static_cast<int>(loads.size())};
  for (const auto& [host, load] : loads) {
    needs.cpus_per_node = std::max(needs.cpus_per_node, load.cpus);
    needs.gpus_per_node = std::max(needs.gpus_per_node, load.gpus);
  }
  return needs;
}

absl::StatusOr<std::string> SlurmScript(const SlurmScriptParts& parts) {
  const config::ClusterConfig& config = parts.config;
  const config::Slurm& slurm = config.launch().slurm();
  const SlurmNeeds needs = NeedsOf(config);
  if (parts.on_these_hosts && slurm.has_nodes() &&
      slurm.nodes() != needs.nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch.slurm.nodes (--nodes): value is ", slurm.nodes(), ", and ",
        needs.nodes, needs.nodes == 1 ? " host is" : " hosts are",
        " named by the config, --hosts or --hostfile; leave nodes out"));
  }
  if (!parts.on_these_hosts && slurm.nodes() > needs.nodes) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch.slurm.nodes (--nodes): value is ", slurm.nodes(),
                     "; the servers and workers of the config are on ",
                     needs.nodes, " nodes at most"));
  }
  if (slurm.has_time()) SL_RETURN_IF_ERROR(CheckTime(slurm));
  std::vector<std::string> options;
  const auto add = [&](const std::string& name, const auto& value) {
    options.push_back(absl::StrCat("--", name, "=", value));
  };
  add("job-name", config.job());
  add("chdir", parts.folder);
  add("output", absl::StrCat(WithoutPatterns(parts.out_dir), "/", kSlurmFolder,
                             "/%j.log"));
  // A job that is queued again goes on in the same file.
  options.emplace_back("--open-mode=append");
  if (slurm.has_partition()) add("partition", slurm.partition());
  if (slurm.has_account()) add("account", slurm.account());
  if (slurm.has_qos()) add("qos", slurm.qos());
  if (slurm.has_time()) add("time", slurm.time());
  if (slurm.has_constraint()) add("constraint", slurm.constraint());
  add("nodes", needs.nodes);
  if (parts.on_these_hosts) {
    std::vector<std::string> hosts;
    for (const auto& [host, load] : LoadOfHosts(config)) hosts.push_back(host);
    add("nodelist", absl::StrJoin(hosts, ","));
  }
  // The task of a node is the agent that starts its processes.
  add("ntasks-per-node", 1);
  add("cpus-per-task", needs.cpus_per_node);
  if (needs.gpus_per_node > 0) add("gpus-per-node", needs.gpus_per_node);
  add("signal", absl::StrCat("B:", config.has_checkpoint() ? "TERM" : "INT",
                             "@", slurm.warning_seconds()));
  if (slurm.requeue()) options.emplace_back("--requeue");
  // The job goes on without the node.
  if (config.replicas() > 0) options.emplace_back("--no-kill");
  // What the user says comes last, since the last one counts.
  options.insert(options.end(), slurm.option().begin(), slurm.option().end());
  std::string script = "#!/bin/sh\n";
  for (const std::string& option : options)
    absl::StrAppend(&script, "#SBATCH ", ShellLine({option}), "\n");
  absl::StrAppend(
      &script,
      "# exec: the signals of Slurm and scancel reach slackline run.\nexec ",
      ShellLine(parts.command), "\n");
  return script;
}

std::string SlurmScriptPath(const std::string& out_dir) {
  return absl::StrCat(out_dir, "/", kSlurmFolder, "/job.sh");
}

std::string SlurmOutputPath(const std::string& out_dir, const std::string& id) {
  return absl::StrCat(out_dir, "/", kSlurmFolder, "/", id, ".log");
}

}  // namespace slackline
