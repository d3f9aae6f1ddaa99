#include "worker/core/evaluations.h"

#include "common/config/stop_rules.h"

namespace slackline {

void Evaluations::OnSkip(Clock from) {
  if (!skipped_from_.has_value()) skipped_from_ = from;
}

bool Evaluations::IsDue(Clock clock, Clock end) const {
  const bool due = skipped_from_.has_value()
                       ? *skipped_from_ / every_ < clock / every_
                       : clock % every_ == 0;
  return due && clock != end && clock != evaluated_;
}

bool Evaluations::Begin(Clock clock, Clock end) {
  if (!IsDue(clock, end)) return false;
  evaluated_ = clock;
  return true;
}

bool Evaluations::KeepsModel(const config::Train& train, double test_loss,
                             double test_accuracy) {
  if (kept_ || StopRuleMet(train.stop(), test_loss, test_accuracy).empty())
    return false;
  kept_ = true;
  return true;
}

}  // namespace slackline
