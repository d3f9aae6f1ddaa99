// Sums by the servers of a job, beside the all-reduce of its workers: each rank
// sends its part of a buffer in pieces, each to one of the shard threads, and
// receives the sums (sum_client_core.h, server/sums/sum_core.h). A rank's link
// carries the bytes once in each direction, where a ring of n ranks takes 2 (n
// - 1) / n of them; those of the servers carry them n times, over all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/ids.h"
#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"
#include "worker/collective/mesh_collective.h"

namespace slackline {

struct ServerSumsOptions {
  Transport* transport = nullptr;  // Outlives the group.
  config::Limits::Transport via = config::Limits::AUTO;
  int32_t worker = 0;  // Rank in the job.
  Incarnation incarnation = 0;
  uint64_t run = 0;
  uint64_t group = 0;  // The view's.
  // The job's servers. Those of the first rank of the group count.
  std::vector<wire::ServerMember> servers = {};
};

// Makes a mesh for GroupOptions::sums. It connects to all shard threads of the
// servers that the first rank has told, without waiting for them. A server that
// has ended fails the operation as Unavailable after a second, one that does
// not answer within the group's time-out as DeadlineExceeded; both name it. A
// lost rank is not noticed here; that is the all-reduce's.
std::unique_ptr<Mesh> MakeServerSums(const ServerSumsOptions& options);

}  // namespace slackline
