// What members say of themselves with each heartbeat, before anything is kept
// of it or concluded from it: numbers that can be, and no more of them than
// there are threads and shards.
#pragma once

#include <cstdint>
#include <string>

#include "proto/run.pb.h"

namespace slackline {

// Empty, or what is wrong first; completes "worker 2".
std::string WhyUnfit(const run::WorkerStats& stats);
// `threads`: of this server. `shards`: of the job.
std::string WhyUnfit(const run::ServerStats& stats, int threads,
                     int32_t shards);

}  // namespace slackline
