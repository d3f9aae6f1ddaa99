#include "worker/session/job_length.h"

#include <algorithm>
#include <cmath>

namespace slackline {

LearningRateSchedule::JobLength JobLengthOf(const config::Train& train,
                                            int64_t steps_per_epoch) {
  const double epochs = train.has_epochs() ? train.epochs() : 1;
  int64_t steps = std::max<int64_t>(
      1, std::llround(epochs * static_cast<double>(steps_per_epoch)));
  if (train.has_max_steps())
    steps = std::min<int64_t>(steps, train.max_steps());
  return {.steps_total = steps, .steps_per_epoch = steps_per_epoch};
}

ElasticLength ElasticLengthOf(const config::Train& train, int64_t examples,
                              int64_t batch_size, int64_t workers) {
  const int64_t of_all = batch_size * workers;  // In a step.
  ElasticLength job;
  job.length = JobLengthOf(train, (examples + of_all - 1) / of_all);
  job.elastic.examples = examples;
  job.elastic.batch_size = batch_size;
  const double epochs = train.has_epochs() ? train.epochs() : 1;
  int64_t total = std::max<int64_t>(
      1, std::llround(epochs * static_cast<double>(examples)));
  if (train.has_max_steps())
    total = std::min<int64_t>(total, train.max_steps() * of_all);
  job.elastic.total = total;
  return job;
}

}  // namespace slackline
