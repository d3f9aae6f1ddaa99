// How long a job is, by its config.
#pragma once

#include <cstdint>

#include "common/example_range.h"
#include "common/optim/schedule.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Steps of one worker, over the job and in an epoch, of which one worker does
// `steps_per_epoch`, at least 1: what epochs and max_steps make of it.
LearningRateSchedule::JobLength JobLengthOf(const config::Train& train,
                                            int64_t steps_per_epoch);

struct ElasticLength {
  LearningRateSchedule::JobLength length;
  ElasticSampling elastic;
};
// JobLengthOf() with elastic sampling of `examples` in batches of up to
// `batch_size` by so many workers, each at least 1: steps are those of workers
// that keep pace.
ElasticLength ElasticLengthOf(const config::Train& train, int64_t examples,
                              int64_t batch_size, int64_t workers);

}  // namespace slackline
