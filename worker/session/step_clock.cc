#include "worker/session/step_clock.h"

#include <algorithm>

namespace slackline {

void StepClock::Start(absl::Time now) {
  if (started_) return;
  started_ = true;
  mark_ = now;
}

void StepClock::Idled(absl::Time now) {
  Blocked idle = {.from = mark_, .until = now};
  mark_ = now;
  if (!started_) return;
  if (idle.time() > idle_.time()) std::swap(idle, idle_);
  times_.waiting += idle.time();
}

void StepClock::Split(const Blocked& blocked, const ClientCore::Parked& parked,
                      absl::Time acknowledged) {
  const absl::Duration waiting = parked.Within(blocked.from, blocked.until);
  const absl::Duration rest = blocked.time() - waiting;
  const absl::Duration pushing =
      acknowledged <= blocked.from
          ? absl::ZeroDuration()
          : std::min(acknowledged - blocked.from, rest);
  times_.waiting += waiting;
  times_.pushing += pushing;
  times_.pulling += rest - pushing;
}

void StepClock::Granted(const ClientCore::Parked& parked,
                        absl::Time acknowledged) {
  Split(idle_, parked, acknowledged);
  idle_ = {};
}

void StepClock::EndIdle() {
  times_.waiting += idle_.time();
  idle_ = {};
}

void StepClock::PulledBehind(const ClientCore::Parked& parked, absl::Time now) {
  if (started_) {
    Split({.from = mark_, .until = now}, parked, absl::InfinitePast());
  }
  mark_ = now;
}

void StepClock::EndStep(run::WorkerStats* stats) {
  const auto seconds = [](absl::Duration time) {
    return absl::ToDoubleSeconds(std::max(time, absl::ZeroDuration()));
  };
  run::StepPhases step;
  step.set_loading(seconds(times_.loading));
  step.set_computing(seconds(times_.computing));
  step.set_waiting(seconds(times_.waiting));
  step.set_pushing(seconds(times_.pushing));
  step.set_pulling(seconds(times_.pulling));
  step.set_reducing(seconds(times_.reducing));
  times_ = {};
  recent_.Add(step);
  recent_.Put(stats->mutable_recent());
  run::StepPhases& sums = *stats->mutable_phase_seconds();
  sums.set_loading(sums.loading() + step.loading());
  sums.set_computing(sums.computing() + step.computing());
  sums.set_waiting(sums.waiting() + step.waiting());
  sums.set_pushing(sums.pushing() + step.pushing());
  sums.set_pulling(sums.pulling() + step.pulling());
  sums.set_reducing(sums.reducing() + step.reducing());
}

}  // namespace slackline
