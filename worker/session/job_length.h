// How long a job is, by its config.
#pragma once

#include <cstdint>

#include "common/optim/schedule.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Steps of one worker, over the job and in an epoch, of which one worker does
// `steps_per_epoch`, at least 1: what epochs and max_steps make of it.
LearningRateSchedule::JobLength JobLengthOf(const config::Train& train,
                                            int64_t steps_per_epoch);

}  // namespace slackline
