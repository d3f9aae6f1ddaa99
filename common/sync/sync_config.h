// What the config may say about modes: one for the job, phases of them, or the
// policy.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Writes out the mode if it was left out.
void FillModes(config::Sync* sync);
// Adds what is wrong with the modes of a job of so many workers.
void CheckModes(const config::Sync& sync, int workers,
                const ConfigProblems& problems);

// Whether steps may be reduced among the workers, without the servers.
bool MayAllReduce(const config::Sync& sync);
// Whether each mode has all workers do the same steps at the same time, each of
// them with the gradients of all: so that they may wait for each other in a
// step.
bool StepsTogether(const config::Sync& sync);

}  // namespace slackline
