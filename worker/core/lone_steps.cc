#include "worker/core/lone_steps.h"

#include <utility>

#include "common/status.h"

namespace slackline {

bool LoneSteps::IsAtEnd() const {
  return options_.elastic.has_value() ? position_ == options_.elastic->total
                                      : clock_ == options_.steps_total;
}

std::optional<LoneSteps::Task> LoneSteps::Next() {
  if (IsAtEnd()) {
    if (std::exchange(concludes_, true)) return std::nullopt;
    return Conclude{};
  }
  if (evaluations_.Begin(clock_, /*end=*/kClockMax))
    return Evaluate{.clock = clock_};
  Step step{.clock = clock_};
  if (options_.elastic.has_value()) {
    step.examples = PlacesOf(*options_.elastic, position_,
                             EndOfRange(*options_.elastic, position_));
  }
  is_open_ = true;
  return step;
}

void LoneSteps::OnStep() {
  SL_CHECK(is_open_, "no step is open");
  is_open_ = false;
  if (options_.elastic.has_value())
    position_ = EndOfRange(*options_.elastic, position_);
  ++clock_;
  evaluations_.OnStep();
}

}  // namespace slackline
