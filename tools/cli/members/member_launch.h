// How a server or worker of a job is started: its program, arguments and
// environment. Paths are those of the host where it runs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/config/cluster_config.h"
#include "proto/cluster.pb.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

struct LaunchOptions {
  std::string bin_dir;       // Holds slackline_server and slackline_worker.
  std::string cluster_file;  // The resolved config.
  std::string data_dir;      // Empty: none.
  std::string out_dir;       // Exists; logs go to its folder logs/.
  // With job.key for servers and WorkerKeyName() for each worker; empty:
  // insecure: true.
  std::string key_folder = {};
  // The file there that all workers have instead; empty: each has its own.
  std::string key_of_workers = {};
  // The checkpoint from which the job goes on; empty: it begins anew.
  std::string resume = {};
  // Server 0 begins a new run, whatever is in out_dir or etcd.
  bool new_run = false;
  // Other servers may have the coordinator of a job that was begun before.
  bool recover = false;
  bool any_server_takes_over = false;  // As AnyServerTakesOver().
  int64_t log_bytes_max = 0;  // Beyond it a log is put aside; 0: never.
  int servers = 1;
  // By rank.
  std::vector<WorkerProcess> workers;
};

// Program and arguments, and for a worker with a program of its own what it is
// told in the environment.
struct MemberLaunch {
  std::vector<std::string> command;
  std::map<std::string, std::string> environment;
};
MemberLaunch LaunchOf(const LaunchOptions& options, const JobProcess& member);

// Where it finds its key; empty: the job has none.
std::string MemberKeyFile(const LaunchOptions& options,
                          const JobProcess& member);

// The same for a process that is started once more, while the job runs.
MemberLaunch RelaunchOf(LaunchOptions options, const JobProcess& member);

// All members that `options` has, servers first.
std::vector<JobProcess> MembersOf(const LaunchOptions& options);

// Whether it is a slackline_worker, which a fork server makes.
bool IsForked(const LaunchOptions& options, const JobProcess& member);

// The config names no program for its workers, though they have to be programs
// of their own.
absl::Status CheckWorkersHavePrograms(const config::ClusterConfig& config);

// One of the programs that the job needs is not on this machine, or the config
// names none for its workers: the error names it.
absl::Status CheckPrograms(const std::string& bin_dir,
                           const config::ClusterConfig& config);

}  // namespace slackline
