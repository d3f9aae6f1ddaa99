#include "worker/core/action_line.h"

#include <utility>

#include "worker/core/worker_core.h"

namespace slackline {

void ActionLine::Add(Action action) {
  actions_.push_back(std::make_unique<const Action>(std::move(action)));
}

std::unique_ptr<const ActionLine::Action> ActionLine::Take() {
  std::unique_ptr<const Action> action = std::move(actions_.front());
  actions_.pop_front();
  open_ = worker_action::ProgramStepOf(*action);
  return action;
}

void ActionLine::PutBack(std::unique_ptr<const Action> action) {
  actions_.push_front(std::move(action));
  open_.reset();
}

ActionLine::AtGather ActionLine::NextAtGather(const WorkerCore& core) {
  if (!core.ending().ok()) return {};
  const bool is_next = !open_.has_value() && !actions_.empty();
  const std::optional<StepKind> step =
      is_next ? worker_action::ProgramStepOf(*actions_.front()) : open_;
  if (step.has_value()) {
    absl::Status lost =
        ConnectsWorkers(*step) ? core.WhyStepIsLost() : absl::OkStatus();
    if (lost.ok()) return {};
    if (is_next) actions_.pop_front();
    open_.reset();
    return {.action = nullptr, .lost = std::move(lost)};
  }
  if (!is_next || WorkerCore::NeedsProgram(*actions_.front())) return {};
  return {.action = Take(), .lost = {}};
}

}  // namespace slackline
