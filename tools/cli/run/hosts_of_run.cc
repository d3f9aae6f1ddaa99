#include "tools/cli/run/hosts_of_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "tools/cli/launch/slurm_hosts.h"
#include "tools/cli/members/local_hosts.h"
#include "tools/cli/run/given_config.h"

namespace slackline {
namespace {

// Names of nodes that are not known yet, with a number behind it.
constexpr char kStandInNode[] = "slurm-node-";
constexpr char kStandInOfRay[] = "ray-node-";
constexpr int kNodesMax = 4096;

// Its processes are to be somewhere, and not on this machine.
bool NamesOtherHosts(const config::ClusterConfig& config) {
  const auto is_other = [](const auto& group) {
    return group.has_host() && !IsLoopback(group.host());
  };
  return is_other(config.coordinator()) ||
         absl::c_any_of(config.server(), is_other) ||
         absl::c_any_of(config.worker(), is_other);
}

// One of them, if any was given.
std::string SlurmFlagOf(const RunOptions& options) {
  if (options.print_script) return "--print";
  if (options.detach) return "--detach";
  if (!options.slurm_options.empty()) return "--slurm-option";
  if (options.slurm_sets.empty()) return options.nodes.empty() ? "" : "--nodes";
  const absl::string_view set = options.slurm_sets.front();
  return absl::StrCat(
      "--", absl::StripPrefix(set.substr(0, set.find('=')), "launch.slurm."));
}

// Nodes that the engine has not chosen yet.
std::vector<HostSlots> StandIns(absl::string_view name, int count) {
  std::vector<HostSlots> hosts;
  for (int i = 1; i <= count; ++i) {
    hosts.push_back({.host = absl::StrCat(name, i), .slots = 0});
  }
  return hosts;
}

// Of a job of Ray that names no hosts.
void TakeStandInsOfRay(RunOptions* options) {
  const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
  if (!given.has_value() || !given->launch().has_ray() ||
      NamesOtherHosts(*given)) {
    return;
  }
  const config::Ray& ray = given->launch().ray();
  options->overrides.hosts_origin = kOnRay;
  // What is outside of the bounds is refused with the rest of the config.
  options->overrides.hosts =
      StandIns(kStandInOfRay,
               std::clamp(ray.has_nodes() ? ray.nodes() : 1, 1, kNodesMax));
}

}  // namespace

absl::StatusOr<SlurmPlan> PlanSlurm(RunOptions* options) {
  const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
  SlurmPlan plan;
  // Flags of Slurm are for jobs of Slurm, and are no way to choose it.
  plan.is_slurm = given.has_value() && given->launch().has_slurm();
  if (given.has_value() && given->launch().has_ray() &&
      !options->nodes.empty()) {
    options->overrides.sets.push_back(
        absl::StrCat("launch.ray.nodes=", options->nodes));
    options->nodes.clear();
  }
  if (const std::string flag = SlurmFlagOf(*options);
      given.has_value() && !plan.is_slurm && !flag.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": is for jobs of Slurm", flag == "--nodes" ? " or Ray" : "",
        ", and this is none; add --on slurm, or launch { slurm {} } to the "
        "config"));
  }
  if (!options->nodes.empty()) {
    options->slurm_sets.push_back(
        absl::StrCat("launch.slurm.nodes=", options->nodes));
  }
  options->overrides.sets.insert(options->overrides.sets.end(),
                                 options->slurm_sets.begin(),
                                 options->slurm_sets.end());
  options->overrides.slurm_options = options->slurm_options;
  if (!plan.is_slurm) return plan;
  const bool within = !options->slurm.job_id.empty();
  if (within && options->detach) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--detach: this is within job ", options->slurm.job_id,
        " of Slurm already; leave --detach out, or run it outside"));
  }
  plan.submits = options->print_script || !within;
  plan.on_named_hosts = !options->hosts.empty() ||
                        !options->host_file.empty() || NamesOtherHosts(*given);
  return plan;
}

absl::Status SetHosts(const SlurmPlan& plan, RunOptions* options) {
  if (options->hosts.empty() && options->host_file.empty()) {
    if (!plan.is_slurm) TakeStandInsOfRay(options);
    if (!plan.is_slurm || plan.on_named_hosts) return absl::OkStatus();
    options->overrides.hosts_origin = kOnSlurm;
    if (!plan.submits) {
      SL_ASSIGN_OR_RETURN(options->overrides.hosts, SlurmHosts());
      return absl::OkStatus();
    }
    const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
    const int nodes = given.has_value() && given->launch().slurm().has_nodes()
                          ? given->launch().slurm().nodes()
                          : 1;
    // What is outside of the bounds is refused with the rest of the config.
    options->overrides.hosts = StandIns(
        kStandInNode, options->dry_run ? 1 : std::clamp(nodes, 1, kNodesMax));
    return absl::OkStatus();
  }
  const bool is_file = options->hosts.empty();
  const std::string origin =
      is_file ? absl::StrCat("--hostfile ", options->host_file)
              : absl::StrCat("--hosts ", options->hosts);
  absl::StatusOr<std::vector<HostSlots>> hosts =
      is_file ? ReadHostFile(options->host_file) : ParseHosts(options->hosts);
  if (!hosts.ok())
    return Annotate(hosts.status(), is_file ? "--hostfile" : "--hosts");
  options->overrides.hosts = *std::move(hosts);
  options->overrides.hosts_origin = origin;
  return absl::OkStatus();
}

absl::Status SetKnownHosts(RunOptions* options) {
  if (const std::optional<config::ClusterConfig> given = WhatIsGiven(*options);
      given.has_value() && given->launch().has_kubernetes()) {
    return absl::FailedPreconditionError(
        "--on kubernetes: the machines of the pods are not known before they "
        "run; `slackline run --on kubernetes --print` shows what the job asks "
        "for");
  }
  SL_ASSIGN_OR_RETURN(SlurmPlan plan, PlanSlurm(options));
  plan.submits = false;
  return SetHosts(plan, options);
}

bool HasStandIns(const config::ClusterConfig& config) {
  return absl::StartsWith(config.server(0).host(), kStandInNode) ||
         absl::StartsWith(config.server(0).host(), kStandInOfRay);
}

}  // namespace slackline
