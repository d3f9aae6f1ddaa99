#include "worker/session/step_clock.h"

#include <algorithm>
#include <utility>

#include "common/timeline/event_names.h"

namespace slackline {

void StepClock::Start(absl::Time now) {
  if (started_) return;
  started_ = true;
  mark_ = now;
  step_begun_ = now;
}

void StepClock::Spend(absl::Duration Times::*phase, absl::Time now) {
  if (started_) times_.*phase += now - mark_;
  if (started_ && IsOn(track_)) {
    RecordComputing();
    Record(phase == &Times::waiting   ? timeline_names::kWaiting
           : phase == &Times::pushing ? timeline_names::kPushing
           : phase == &Times::pulling ? timeline_names::kPulling
                                      : timeline_names::kReducing,
           mark_, now);
  }
  mark_ = now;
}

void StepClock::Computed(absl::Time now) {
  if (started_) times_.computing += now - mark_;
  if (started_ && IsOn(track_)) {
    if (computing_.in.time() == absl::ZeroDuration())
      computing_ = {.in = {.from = mark_, .until = mark_},
                    .loading = computing_.loading,
                    .pushing = computing_.pushing,
                    .reducing = computing_.reducing};
    computing_.in.until = now;
  }
  mark_ = now;
}

void StepClock::WasLoading(absl::Duration time) {
  if (!started_) return;
  times_.computing -= time;
  times_.loading += time;
  if (IsOn(track_)) computing_.loading += time;
}

void StepClock::WasPushing(absl::Duration time) {
  if (!started_) return;
  times_.computing -= time;
  times_.pushing += time;
  if (IsOn(track_)) computing_.pushing += time;
}

void StepClock::WasReducing(absl::Duration time) {
  if (!started_) return;
  times_.computing -= time;
  times_.reducing += time;
  if (IsOn(track_)) computing_.reducing += time;
}

void StepClock::Idled(absl::Time now) {
  Blocked idle = {.from = mark_, .until = now};
  mark_ = now;
  if (!started_) return;
  if (idle.time() > idle_.time()) std::swap(idle, idle_);
  times_.waiting += idle.time();
  if (!IsOn(track_)) return;
  RecordComputing();
  Record(timeline_names::kWaiting, idle.from, idle.until);
}

void StepClock::Split(const Blocked& blocked, const ParkedTime& parked,
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
  if (IsOn(track_)) RecordSplit(blocked, parked, pushing);
}

void StepClock::Granted(const ParkedTime& parked, absl::Time acknowledged) {
  Split(idle_, parked, acknowledged);
  idle_ = {};
}

void StepClock::EndIdle() {
  times_.waiting += idle_.time();
  if (IsOn(track_)) Record(timeline_names::kWaiting, idle_.from, idle_.until);
  idle_ = {};
}

void StepClock::PulledBehind(const ParkedTime& parked, absl::Time now) {
  if (started_) {
    if (IsOn(track_)) RecordComputing();
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
  if (IsOn(track_)) {
    RecordComputing();
    Record(timeline_names::kStep, step_begun_, mark_);
  }
  computing_ = {};
  step_begun_ = mark_;
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

// ---- The timeline

void StepClock::Record(const char* name, absl::Time from, absl::Time until) {
  if (from >= until) return;
  track_->Add({.name = name, .begun = from, .until = until, .number = clock_});
}

void StepClock::RecordComputing() {
  const Computing of = std::exchange(computing_, {});
  const absl::Time computing = std::min(of.in.from + of.loading, of.in.until);
  const absl::Time reducing = std::max(of.in.until - of.reducing, computing);
  const absl::Time pushing = std::max(reducing - of.pushing, computing);
  Record(timeline_names::kLoading, of.in.from, computing);
  Record(timeline_names::kComputing, computing, pushing);
  Record(timeline_names::kPushing, pushing, reducing);
  Record(timeline_names::kReducing, reducing, of.in.until);
}

// Gradients go before the pull can be answered; then it is parked, or under
// way.
void StepClock::RecordSplit(const Blocked& blocked, const ParkedTime& parked,
                            absl::Duration pushing) {
  const absl::Time pulling = blocked.from + pushing;
  Record(timeline_names::kPushing, blocked.from, pulling);
  const absl::Time waiting = std::clamp(parked.from, pulling, blocked.until);
  const absl::Time granted = std::clamp(parked.until, waiting, blocked.until);
  Record(timeline_names::kPulling, pulling, waiting);
  Record(timeline_names::kWaiting, waiting, granted);
  Record(timeline_names::kPulling, granted, blocked.until);
}

}  // namespace slackline
