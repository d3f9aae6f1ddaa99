#include "tools/cli/run/local_cluster.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<Cluster>> LocalCluster::Start(
    const LaunchOptions& options) {
  // No make_unique: the constructor is private.
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options));
  SL_RETURN_IF_ERROR(cluster->logs_.MakeFolder());
  const std::vector<JobProcess> members = MembersOf(options);
  // Loads beside the start of the servers.
  if (std::any_of(members.begin(), members.end(),
                  [&](const JobProcess& member) {
                    return IsForked(options, member);
                  })) {
    cluster->processes_.LoadForkServer(
        absl::StrCat(options.bin_dir, "/slackline_worker"));
  }
  for (const JobProcess& member : members) {
    cluster->logs_.Begin(member);
    SL_RETURN_IF_ERROR(cluster->processes_.Start(
        member, LaunchOf(options, member),
        {.path = cluster->LogPath(member), .bytes_max = options.log_bytes_max},
        IsForked(options, member)));
  }
  cluster->processes_.EndForks();
  return cluster;
}

absl::StatusOr<bool> LocalCluster::Restart(const JobProcess& member) {
  logs_.Begin(member);
  const absl::Status started = processes_.Start(
      member, RelaunchOf(options_, member),
      {.path = LogPath(member), .bytes_max = options_.log_bytes_max},
      /*forked=*/false);
  if (!started.ok()) return Annotate(started, member.ToString());
  return true;
}

std::vector<MemberExit> LocalCluster::Reap() {
  processes_.PutLongLogsAside();
  std::vector<MemberExit> exits = processes_.Reap();
  for (MemberExit& exit : exits)
    exit.error_line = ErrorLine(ReadLogTail(LogPath(exit.member)));
  return exits;
}

}  // namespace slackline
