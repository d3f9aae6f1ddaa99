// The batch script with which a job is submitted to Slurm. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace slackline {

// What an allocation has to have for the job.
struct SlurmNeeds {
  int nodes = 1;
  // Of the node that has most of them.
  int cpus_per_node = 1;
  int gpus_per_node = 0;
};
// For a config whose processes are placed, on hosts or on as many stand-ins.
SlurmNeeds NeedsOf(const config::ClusterConfig& config);

// A time limit as sbatch takes it: "30" (minutes), "30:00", "2:00:00", "1-12"
// (days-hours), "1-12:30", "1-12:30:00". nullopt: it is none of these, as
// "infinite".
std::optional<absl::Duration> SlurmTime(absl::string_view text);

struct SlurmScriptParts {
  config::ClusterConfig config;  // Placed, as for NeedsOf().
  // The hosts of the config are nodes of Slurm, and no others will do.
  bool on_these_hosts = false;
  std::vector<std::string> command;  // What the job runs.
  std::string folder;                // In which it runs it.
  std::string out_dir;               // As seen from there.
};
// "#!/bin/sh", lines for sbatch, the command. InvalidArgument: more nodes are
// asked for than can have a process, or others than the hosts that are named,
// or less time than the job is told before its end.
absl::StatusOr<std::string> SlurmScript(const SlurmScriptParts& parts);

// What a run keeps of its Slurm jobs is in this folder of its own. A folder
// that has nothing else is that of a run that has not begun.
inline constexpr char kSlurmFolder[] = "slurm";
std::string SlurmScriptPath(const std::string& out_dir);
// Where the job's output goes.
std::string SlurmOutputPath(const std::string& out_dir, const std::string& id);

}  // namespace slackline
