// The processes of a job on its hosts, each started by the agent there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "tools/cli/launch/remote_hosts.h"
#include "tools/cli/launch/returning_hosts.h"
#include "tools/cli/members/cluster.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/member_launch.h"

namespace slackline {

// Where things are on the hosts: absolute paths.
struct RemotePaths {
  std::string bin_dir;
  std::string run_folder;
  std::string data_dir;
};
// `out_dir`, `bin_dir` and `data_dir` are those of this machine.
RemotePaths RemotePathsOf(const config::Launch& launch,
                          const std::string& bin_dir,
                          const std::string& out_dir,
                          const std::string& data_dir);

// The hosts of all members, that of server 0 first, each once.
std::vector<std::string> HostsOfMembers(const config::ClusterConfig& config);

// What no engine but `here` can do with this config; OK: all of it.
absl::Status CheckRemoteConfig(const config::ClusterConfig& config,
                               const std::string& engine);

class RemoteCluster : public Cluster {
 public:
  struct Options {
    LaunchOptions launch;     // As for a LocalCluster.
    std::string config_text;  // Of launch.cluster_file.
    config::ClusterConfig config;
    RemotePaths paths;
  };
  // `hosts` outlives it. A host whose agent was lost gets a new one. Files of
  // hosts that do not share launch.out_dir are copied there. Errors name the
  // host, and what is missing there.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const Options& options,
                                                        RemoteHosts* hosts,
                                                        SignalWatch* signals);
  ~RemoteCluster() override;

  std::vector<MemberExit> Reap() override;
  // Of a host whose agent is lost: an agent is started anew first.
  absl::StatusOr<bool> Restart(const JobProcess& member) override;
  void Signal(const JobProcess& member, int signal) override;
  void SignalAllBut(const JobProcess& member, int signal) override;
  std::string LogPath(const JobProcess& member) const override {
    return logs_.PathOf(member);
  }
  std::vector<std::string> TakeNotes() override;
  std::string MissingFiles() override;
  void ExchangeKeys() override;

 private:
  RemoteCluster(Options options, RemoteHosts* hosts);
  const std::string& HostOf(const JobProcess& member) const {
    return hosts_of_.at(member);
  }
  // A process that was to be started, and is not.
  MemberExit NotStarted(const JobProcess& member, const std::string& why) const;
  void GoOnWithReturning(absl::Time now, std::vector<MemberExit>* exits);
  // The host of server 0 first, since others look for what it leaves.
  absl::Status Begin(const std::vector<std::string>& hosts,
                     SignalWatch* signals);
  absl::Status BeginTogether(const std::vector<std::string>& hosts,
                             SignalWatch* signals);
  // To the host of server 0: what there is of the run so far, which may have
  // gone before on other hosts.
  absl::Status PutRecords();
  absl::StatusOr<ReturningHosts::BeginRequest> BeginRequestTo(
      const std::string& host) const;
  agent::Begin BeginOf(const std::string& host) const;
  absl::Status CheckShared(const std::string& host,
                           const agent::Answer& answer) const;
  agent::ToAgent StartOf(const JobProcess& member,
                         const MemberLaunch& launch) const;

  // Those that processes on this host need, as the files here are now.
  absl::StatusOr<agent::Keys> KeysOf(const std::string& host) const;

  const Options options_;
  RemoteHosts* const remote_;
  const std::string checkpoints_;  // The folder here; empty: none is needed.
  LaunchOptions launch_;           // With the paths of the hosts.
  std::map<JobProcess, std::string> hosts_of_;
  const std::string sender_mark_;
  MemberLogs logs_;
  std::map<JobProcess, int> running_;  // With their process ids.
  std::vector<std::string> notes_;
  ReturningHosts returning_;
  std::vector<MemberExit> dropped_;  // Were to be started on these.
};

}  // namespace slackline
