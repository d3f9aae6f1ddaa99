// Staleness as jobs, jobs with given delays and replays count it: the one
// definition of each measure (run::ServerStats says what they mean).
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "proto/run.pb.h"

namespace slackline {

// A gradient that comes to a shard `missed` updates (at least 0) after the
// version that it was computed from. A clock has so many updates there: one
// where gradients are applied as the mean of a clock, else one of each worker.
void CountMissed(int64_t missed, int updates_per_clock,
                 run::ServerStats* stats);

// The parameters of the step of clock `step` are read when all workers have
// completed the clocks before `complete`.
void CountLead(Clock step, Clock complete, run::ServerStats* stats);

// All three measures, as percentiles and in bins.
void PutStaleness(const run::ServerStats& stats, run::Summary* summary);

}  // namespace slackline
