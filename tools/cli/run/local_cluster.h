// The processes of a job on this machine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/cli/members/cluster.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/member_launch.h"
#include "tools/cli/members/member_processes.h"

namespace slackline {

class LocalCluster : public Cluster {
 public:
  // If one does not start, those before it are ended. Logs that the folder has
  // of an earlier run stay.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(
      const LaunchOptions& options);

  std::vector<MemberExit> Reap() override;
  absl::StatusOr<bool> Restart(const JobProcess& member) override;
  void Signal(const JobProcess& member, int signal) override {
    processes_.Signal(member, signal);
  }
  void SignalAllBut(const JobProcess& member, int signal) override {
    processes_.SignalAllBut(member, signal);
  }
  std::string LogPath(const JobProcess& member) const override {
    return logs_.PathOf(member);
  }

 private:
  explicit LocalCluster(LaunchOptions options)
      : options_(std::move(options)), logs_(options_.out_dir) {}

  const LaunchOptions options_;
  MemberLogs logs_;
  MemberProcesses processes_;
};

}  // namespace slackline
