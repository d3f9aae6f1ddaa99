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

}  // namespace slackline
