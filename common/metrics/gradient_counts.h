// What became of the gradients that servers accepted: each is applied, held,
// dropped, has a NaN or an infinity, or is above the job's bound.
#pragma once

#include <cstdint>

#include "proto/run.pb.h"

namespace slackline {

// Gradients with a NaN or an infinity, of all ranks.
uint64_t NonfiniteGradients(const run::ServerStats& stats);
// Gradients above the bound, of all ranks.
uint64_t OversizedGradients(const run::ServerStats& stats);

// Accepted gradients of which the counters do not say what became of them. 0
// for a thread whose shards stay; over a cluster whenever no shard is between
// two owners: who accepts a gradient counts it in `pushes`, and who has it then
// in the others. Anything else is a mistake in the counting.
int64_t UnaccountedGradients(const run::ServerStats& stats);

}  // namespace slackline
