#include "worker/core/action_line.h"

#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
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
  const auto why_lost = [&](StepKind step) {
    return ConnectsWorkers(step) ? core.WhyStepIsLost() : absl::OkStatus();
  };
  absl::Status lost;
  if (open_.has_value()) {
    lost = why_lost(*open_);
    if (!lost.ok()) open_.reset();
    return {.action = nullptr, .lost = std::move(lost)};
  }
  // Only evaluations are before it.
  const auto next = absl::c_find_if(actions_, [](const auto& action) {
    return !std::holds_alternative<worker_action::Evaluate>(*action);
  });
  if (next == actions_.end()) return {};
  const std::optional<StepKind> step = worker_action::ProgramStepOf(**next);
  if (step.has_value()) lost = why_lost(*step);
  if (lost.ok() && worker_action::NeedsProgram(**next)) return {};
  if (lost.ok() || next != actions_.begin())
    return {.action = Take(), .lost = {}};
  actions_.pop_front();
  return {.action = nullptr, .lost = std::move(lost)};
}

}  // namespace slackline
