// What `slackline run` is told: its flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/config/cluster_config.h"
#include "common/process/job_key.h"
#include "tools/cli/launch/slurm_tools.h"

namespace slackline {

struct RunOptions {
  std::string config_path;
  ConfigOverrides overrides;
  std::string data_dir;  // Empty: see LocateData().
  std::string out_dir;   // Empty: runs/JOB-MODE-TIME.
  // Where the checkpoint is from which the job goes on, as for
  // OpenCheckpoint(); empty: it begins anew.
  std::string resume = {};
  // Begins anew in out_dir, though that has a run, which is put aside.
  bool new_run = false;
  bool best = false;  // Of those at `resume`: FindBestCheckpoint().
  KeyPlace key = {};
  std::string bin_dir;       // Of slackline_server and slackline_worker.
  bool check_memory = true;  // Whether it holds the job, before the start.
  int restart_workers = 0;   // Times that each worker is started again.
  // Times that each server but the one with the coordinator is started again.
  // Not given: see
  // ServerRestarts().
  std::optional<int> restart_servers = {};
  bool progress = true;
  // Of a timeline from the first step on (TimelineOfRun); 0: none.
  double timeline_seconds = 0;
  // Trackers, as TrackOptions::to; empty: those of the config.
  std::vector<std::string> track = {};
  // Processes are placed on these hosts, as ParseHosts() has them, or on those
  // of a file; empty: on those of the config.
  std::string hosts = {};
  std::string host_file = {};
  // The job of Slurm in which this program runs, if it does.
  SlurmAllocation slurm = {};
  // What flags set of launch.slurm: "launch.slurm.time=30". Only for jobs of
  // Slurm.
  std::vector<std::string> slurm_sets = {};
  // Of Slurm or Ray, as launch.slurm.nodes or launch.ray.nodes; empty: not
  // given.
  std::string nodes = {};
  // Beside those of launch.slurm.option.
  std::vector<std::string> slurm_options = {};
  bool print_script = false;  // Submits nothing.
  bool detach = false;        // Submits, and does not follow.
  // The command of the batch script, but for --out and what follows it.
  std::vector<std::string> batch_command = {};
  bool dry_run = false;  // Checks what it can, and starts and writes nothing.
  // Those of the flags, as they were given, that a run needs again which goes
  // on with the config and the folder of this one.
  std::vector<std::string> flags_again = {};
};

}  // namespace slackline
