// When training reports and what: the same for jobs and for replays of delays.
#pragma once

#include <cstdint>

#include "common/ids.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"

namespace slackline {

// Clocks from one TRAIN record to the next, and from one evaluation to the
// next. At least 1.
Clock TrainRecordInterval(int64_t steps_per_epoch);
Clock EvaluationInterval(const config::Train& train, int64_t steps_per_epoch);

// The record of an evaluation, without rank, time and figures.
run::MetricRecord EvalRecord(Clock step, int64_t steps_per_epoch);

}  // namespace slackline
