#include "common/process/join_request.h"

#include <unistd.h>

#include <filesystem>
#include <random>
#include <system_error>

#include "common/config/cluster_config.h"
#include "common/net/host_id.h"
#include "common/version.h"

namespace slackline {

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
  join.set_host(host);
  join.set_host_id(HostId());
  join.set_pid(getpid());
  join.set_protocol(kProtocol);
  *join.mutable_build() = ThisBuild();
  return join;
}

}  // namespace slackline
