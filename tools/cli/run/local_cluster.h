// All server and worker processes of a job, on this machine.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/process.h"
#include "tools/cli/run/supervisor.h"

namespace slackline {

// Belongs to the thread that started it; its end is the end of all processes.
class LocalCluster {
 public:
  struct Options {
    std::string bin_dir;       // Holds slackline_server and slackline_worker.
    std::string cluster_file;  // The resolved config.
    std::string data_dir;
    std::string out_dir;  // Exists; logs go to its folder logs/.
    int servers = 1;
    int workers = 1;
  };
  // What starts a process, program first.
  static std::vector<std::string> Command(const Options& options,
                                          const Member& member);

  // NotFound, naming the program, if one of the two is not there.
  static absl::Status CheckPrograms(const std::string& bin_dir);

  // If one does not start, those before it are ended.
  static absl::StatusOr<LocalCluster> Start(const Options& options);

  // Those that have ended since the last call.
  std::vector<MemberExit> Reap();
  // Starts a process that has ended once more, with a log of its own.
  absl::Status Restart(const Member& member);
  void SignalAll(int signal);
  // Of the latest start of the process.
  std::string LogPath(const Member& member) const;

 private:
  explicit LocalCluster(Options options) : options_(std::move(options)) {}
  absl::Status StartMember(const Member& member);

  Options options_;
  std::map<Member, int> starts_;
  std::map<Member, ChildProcess> children_;
};

}  // namespace slackline
