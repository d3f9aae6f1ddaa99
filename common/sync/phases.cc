#include "common/sync/phases.h"

#include <algorithm>

#include "common/status.h"

namespace slackline {

int PhaseIndexAt(const wire::View& view, Clock clock) {
  SL_CHECK(clock >= 0 && view.phase_size() > 0,
           "a clock below 0, or a view without phases");
  const auto after =
      std::upper_bound(view.phase().begin() + 1, view.phase().end(), clock,
                       [](Clock value, const wire::Phase& phase) {
                         return value < phase.from();
                       });
  return static_cast<int>(after - view.phase().begin()) - 1;
}

Clock EndOf(const wire::View& view) {
  if (view.end_clock() > 0) return view.end_clock();
  return view.elastic() ? kClockMax : view.steps_total();
}

bool HasTrained(const run::WorkerProgress& progress, const wire::View& view) {
  return progress.clock() >= EndOf(view) &&
         progress.activity() == run::WorkerProgress::WORKING;
}

const wire::Phase& PhaseAt(const wire::View& view, Clock clock) {
  return view.phase(PhaseIndexAt(view, clock));
}

const wire::Phase* PhaseAfter(const wire::View& view, Clock clock) {
  const int next = PhaseIndexAt(view, clock) + 1;
  return next < view.phase_size() ? &view.phase(next) : nullptr;
}

Clock EndOfPhase(const wire::View& view, int index) {
  return index + 1 < view.phase_size()
             ? std::min<Clock>(view.phase(index + 1).from(), EndOf(view))
             : EndOf(view);
}

const ModeRule& RuleAt(const wire::View& view, Clock clock) {
  return RuleOf(PhaseAt(view, clock).mode());
}

StepKind StepAt(const wire::View& view, Clock clock) {
  return RuleAt(view, clock).StepOf(clock);
}

StepKind FirstStepOf(const wire::Phase& phase) {
  return RuleOf(phase.mode()).StepOf(phase.from());
}

const wire::Phase* GivenDelaysPhase(const wire::View& view) {
  for (const wire::Phase& phase : view.phase()) {
    if (!RuleOf(phase.mode()).GivenDelaysOf(phase.mode()).empty())
      return &phase;
  }
  return nullptr;
}

PullNeeds NeedsAt(const wire::View& view, Clock clock, bool granted) {
  const int index = PhaseIndexAt(view, clock);
  const wire::Phase& phase = view.phase(index);
  const ModeRule& rule = RuleOf(phase.mode());
  PullNeeds needs = rule.NeedsOf(phase.mode(), clock);
  if (granted) needs.of_all -= rule.extra_steps(phase.mode());
  if (index == 0) return needs;
  const PullNeeds after =
      RuleOf(view.phase(index - 1).mode()).NeedsAfter(phase.from());
  return {.of_all = std::max(needs.of_all, after.of_all),
          .complete = std::max(needs.complete, after.complete),
          .turn = needs.turn};
}

}  // namespace slackline
