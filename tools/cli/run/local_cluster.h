// All server and worker processes of a job, on this machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/cluster_config.h"
#include "proto/cluster.pb.h"
#include "tools/cli/fork_server_client.h"
#include "tools/cli/process.h"
#include "tools/cli/run/supervisor.h"

namespace slackline {

// Belongs to the thread that started it; its end is the end of all processes.
class LocalCluster {
 public:
  struct Options {
    std::string bin_dir;       // Holds slackline_server and slackline_worker.
    std::string cluster_file;  // The resolved config.
    std::string data_dir;      // Empty: none.
    std::string out_dir;       // Exists; logs go to its folder logs/.
    // The checkpoint from which the job goes on; empty: it begins anew.
    std::string resume = {};
    // Server 0 begins a new run, whatever is in out_dir or etcd.
    bool new_run = false;
    // Other servers may have the coordinator of a job that was begun before.
    bool recover = false;
    bool any_server_takes_over = false;  // As AnyServerTakesOver().
    int servers = 1;
    // By rank.
    std::vector<WorkerProcess> workers;
  };
  // How a process is started: program and arguments, and for a worker with a
  // program of its own what it is told in the environment.
  struct Launch {
    std::vector<std::string> command;
    std::map<std::string, std::string> environment;
  };
  static Launch LaunchOf(const Options& options, const Member& member);

  // One of the programs that the job needs is not there, or the config names
  // none for its workers: the error names it.
  static absl::Status CheckPrograms(const std::string& bin_dir,
                                    const config::ClusterConfig& config);

  // If one does not start, those before it are ended. Logs that the folder has
  // of an earlier run stay.
  static absl::StatusOr<LocalCluster> Start(const Options& options);

  // Those that have ended since the last call.
  std::vector<MemberExit> Reap();
  // Starts a process of a running job that has ended once more, with a log of
  // its own. A server begins empty, whatever the job goes on from; server 0
  // goes on with the job.
  absl::Status Restart(const Member& member);
  void Signal(const Member& member, int signal);
  void SignalAllBut(const Member& member, int signal);
  // Of the latest start of the process.
  std::string LogPath(const Member& member) const;

 private:
  explicit LocalCluster(Options options) : options_(std::move(options)) {}
  // `fork_server`: makes the process; null: its program is started.
  absl::Status StartMember(const Member& member, Launch launch,
                           ForkServerClient* fork_server);

  Options options_;
  std::map<Member, int> starts_;
  std::map<Member, ChildProcess> children_;
};

}  // namespace slackline
