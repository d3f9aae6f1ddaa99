#include "worker/session/recent_steps.h"

#include <algorithm>
#include <cmath>

#include "common/metrics/step_phases.h"

namespace slackline {

void RecentSteps::Add(const run::StepPhases& step) {
  steps_[static_cast<size_t>(added_++ % kSteps)] = {
      step.loading(), step.computing(), step.waiting(),  step.pushing(),
      step.pulling(), step.reducing(),  OwnSeconds(step)};
}

void RecentSteps::Put(run::RecentSteps* recent) const {
  static_assert(kTrimmed == 2, "below, the two longest are left out");
  const int count = static_cast<int>(std::min<int64_t>(added_, kSteps));
  const int kept = count < kTrimmedFrom ? count : count - kTrimmed;
  recent->set_steps(added_);
  recent->set_count(count);
  if (count == 0) return;
  Numbers means = {};
  double squares = 0;  // Of the last number.
  for (size_t i = 0; i < means.size(); ++i) {
    double sum = 0;
    double first = 0;
    double second = 0;
    squares = 0;
    for (int step = 0; step < count; ++step) {
      const double seconds = steps_[static_cast<size_t>(step)][i];
      sum += seconds;
      squares += seconds * seconds;
      second = std::max(second, std::min(first, seconds));
      first = std::max(first, seconds);
    }
    if (kept < count) {
      sum -= first + second;
      squares -= first * first + second * second;
    }
    means[i] = std::max(sum / kept, 0.0);  // Rounded, it may be below.
  }
  run::StepPhases& mean = *recent->mutable_mean();
  mean.set_loading(means[0]);
  mean.set_computing(means[1]);
  mean.set_waiting(means[2]);
  mean.set_pushing(means[3]);
  mean.set_pulling(means[4]);
  mean.set_reducing(means[5]);
  recent->set_deviation(
      std::sqrt(std::max(squares / kept - means[6] * means[6], 0.0)));
}

}  // namespace slackline
