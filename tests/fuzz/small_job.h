// The job that the fuzzers of cores take part in: a server with two shard
// threads and two workers, BSP, one table of six shards.
#pragma once

#include <memory>

#include "common/message.h"
#include "common/view/shard_map.h"
#include "server/coordinator/coordinator_core.h"

namespace slackline::fuzz {

inline constexpr uint64_t kRun = 77;
inline constexpr int kWorkers = 2;
inline constexpr int kThreads = 2;
inline constexpr int64_t kElements = 24;

// How each of them is known to the coordinator.
PeerId ServerPeer();
PeerId WorkerPeer(int rank);

wire::JoinRequest ServerJoin();
wire::JoinRequest WorkerJoin(int rank);

CoordinatorCore::Options JobOptions();

// The server and the workers join. The job then runs.
void JoinAll(CoordinatorCore* core, absl::Time now,
             CoordinatorCore::Effects* effects, bool elastic = false);

// The view of a job that all have just joined.
std::shared_ptr<const View> RunningView();
// The same, with a second server of one thread, which owns the last shard and
// follows the first; thread 0 of the first server follows the last. The number
// of that view names the followers.
inline constexpr uint64_t kFollowedSince = 2;
std::shared_ptr<const View> FollowedView();

}  // namespace slackline::fuzz
