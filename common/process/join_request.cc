#include "common/process/join_request.h"

#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/config/cluster_config.h"
#include "common/net/host_id.h"
#include "common/net/resolve.h"
#include "common/version.h"

namespace slackline {
std::string OwnHostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "another host";
  return name;
}

uint64_t RandomToken() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

wire::Build ThisBuild() {
  wire::Build build;
  std::error_code error;
  build.set_program(std::filesystem::read_symlink("/proc/self/exe", error)
                        .filename()
                        .string());
  build.set_version(VersionNumber());
  build.set_commit(BuildCommit());
  build.set_build_id(BuildId());
  return build;
}

wire::JoinRequest JoinRequestOf(wire::JoinRequest::Role role, int index,
                                const std::string& host,
                                const config::ClusterConfig& config) {
  wire::JoinRequest join;
  join.set_role(role);
  join.set_index(index);
  join.set_token(RandomToken());
  join.set_job(config.job());
  join.set_config_hash(ConfigHash(config));
  if (config.ByteSizeLong() <= kJoinConfigBytesMax)
    join.set_config(config.SerializeAsString());
  join.set_host(host);
  join.set_host_id(HostId());
  join.set_pid(getpid());
  join.set_protocol(kProtocol);
  *join.mutable_build() = ThisBuild();
  return join;
}

std::string WhyOnAnotherHost(const std::string& who, const std::string& host,
                             const std::string& listen) {
  const std::string& place = listen.empty() ? host : listen;
  if (IsAnyAddress(place)) return "";
  const absl::StatusOr<std::string> address = ResolveHost(place);
  if (address.ok() && IsOwnAddress(*address, OwnAddresses())) return "";
  return absl::StrCat(
      "the config has ", who, " on ", place, " (",
      address.ok() ? *address : std::string(address.status().message()),
      "), which is not this host, ", OwnHostName(),
      "; was it started with the --index of another one?");
}

}  // namespace slackline
