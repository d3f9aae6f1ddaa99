#include "worker/collective/host_group.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/delayed/link_model.h"
#include "common/status.h"
#include "common/sync/sync_config.h"
#include "worker/collective/shm_collective.h"
#include "worker/collective/tcp_collective.h"

namespace slackline {

using Limits = config::Limits;

bool MaySumInMemory(Limits::Transport transport,
                    const std::optional<LinkModel>& link) {
  return (transport == Limits::AUTO || transport == Limits::SHM) &&
         !link.has_value();
}

bool MaySumOverTcp(const config::ClusterConfig& config,
                   const WorkerProcess& self) {
  if (self.gpu >= 0 || !MayAllReduce(config.sync())) return false;
  if (!MaySumInMemory(config.limits().transport(), SlowestLink(config)))
    return true;
  const std::vector<WorkerProcess> all = WorkerProcesses(config);
  return std::any_of(all.begin(), all.end(), [&](const WorkerProcess& other) {
    return MachineOf(other.host) != MachineOf(self.host);
  });
}

absl::StatusOr<ConnectedGroup> ConnectHostGroup(
    const GroupOptions& options, config::Limits::Transport transport) {
  std::string why;
  if (MaySumInMemory(transport, options.link) && options.world_size > 1) {
    GroupOptions sharing = options;
    absl::StrAppend(&sharing.group, "/shm");
    absl::StatusOr<std::unique_ptr<Collective>> shared =
        CreateShmCollective(sharing);
    if (shared.ok()) {
      return ConnectedGroup{
          .collective = *std::move(shared), .over = "shared memory", .why = ""};
    }
    if (!absl::IsFailedPrecondition(shared.status())) return shared.status();
    if (transport == Limits::SHM) {
      return absl::InvalidArgumentError(absl::StrCat(
          "limits { transport: SHM }: ", std::string(shared.status().message()),
          "; use AUTO or TCP"));
    }
    why = std::string(shared.status().message());
  }
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Collective> over_tcp,
                      CreateTcpCollective(options));
  return ConnectedGroup{
      .collective = std::move(over_tcp), .over = "tcp", .why = std::move(why)};
}

}  // namespace slackline
