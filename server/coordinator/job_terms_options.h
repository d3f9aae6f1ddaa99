// What a job is, as far as a process that joins has to fit: from the config and
// the coordinator's own start.
#pragma once

#include <cstdint>
#include <string>

#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "proto/optimizer.pb.h"

namespace slackline {

struct JobTermsOptions {
  std::string job;
  std::string config_hash;
  // Its optimizer is that of tables that come without one; perhaps it has none.
  // It also serves to name the field in which another one differs. If it has no
  // servers and workers, it is not known.
  config::ClusterConfig config = {};
  int protocol = 0;
  wire::Build build;  // Of the coordinator.
  int servers = 1;    // Of the config.
  int workers = 1;
  int64_t shard_elements = 65536;
  // The hash of recorded delays, which every server has to have.
  std::string delays_sha256;
  // The checkpoint that the job goes on from, which every server has to name;
  // empty: there is none.
  std::string checkpoint_sha256;
};

}  // namespace slackline
