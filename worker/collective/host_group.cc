#include "worker/collective/host_group.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/collective/shm_collective.h"
#include "worker/collective/tcp_collective.h"

namespace slackline {

absl::StatusOr<ConnectedGroup> ConnectHostGroup(
    const GroupOptions& options, config::Limits::Transport transport) {
  using Limits = config::Limits;
  std::string why;
  if ((transport == Limits::AUTO || transport == Limits::SHM) &&
      !options.link.has_value() && options.world_size > 1) {
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
