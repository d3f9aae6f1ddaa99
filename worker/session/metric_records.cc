#include "worker/session/metric_records.h"

#include <algorithm>
#include <cmath>

namespace slackline {
namespace {
constexpr int64_t kTrainRecordsPerEpoch = 20;
}  // namespace

Clock TrainRecordInterval(int64_t steps_per_epoch) {
  return std::max<Clock>(1, steps_per_epoch / kTrainRecordsPerEpoch);
}

Clock EvaluationInterval(const config::Train& train, int64_t steps_per_epoch) {
  return std::max<Clock>(1, std::llround(train.eval_every_epochs() *
                                         static_cast<double>(steps_per_epoch)));
}

run::MetricRecord EvalRecord(Clock step, int64_t steps_per_epoch) {
  run::MetricRecord record;
  record.set_kind(run::MetricRecord::EVAL);
  record.set_step(step);
  record.set_epoch(static_cast<double>(step) /
                   static_cast<double>(steps_per_epoch));
  return record;
}

}  // namespace slackline
