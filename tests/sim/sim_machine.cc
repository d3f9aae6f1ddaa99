#include "tests/sim/sim_machine.h"

#include <algorithm>
#include <cmath>

namespace slackline::sim {

absl::Time SimMachine::LocalOf(absl::Time truth) const {
  if (suspends_ && stands_still()) truth = std::min(truth, since_);
  const absl::Duration passed = truth - absl::UnixEpoch() - suspended_;
  if (clock_.drift == 0) return absl::UnixEpoch() + clock_.ahead + passed;
  const auto drifted = static_cast<int64_t>(std::llround(
      static_cast<double>(absl::ToInt64Nanoseconds(passed)) * clock_.drift));
  return absl::UnixEpoch() + clock_.ahead + passed + absl::Nanoseconds(drifted);
}

absl::Time SimMachine::TruthOf(absl::Time local) const {
  const absl::Duration passed = local - absl::UnixEpoch() - clock_.ahead;
  if (clock_.drift == 0) return absl::UnixEpoch() + passed + suspended_;
  const auto undrifted = static_cast<int64_t>(
      std::ceil(static_cast<double>(absl::ToInt64Nanoseconds(passed)) /
                (1 + clock_.drift)));
  return absl::UnixEpoch() + absl::Nanoseconds(undrifted) + suspended_;
}

void SimMachine::At(absl::Time at, std::function<void()> run) {
  if (at == absl::InfiniteFuture()) return;  // A step that never ends.
  queue_->At(at == absl::InfinitePast() ? queue_->now() : TruthOf(at),
             std::move(run), this, at);
}

void SimMachine::Arrive(std::function<void()> run) {
  if (!stands_still()) return run();
  waiting_.push_back(
      {.timer = false, .due = absl::InfinitePast(), .run = std::move(run)});
}

void SimMachine::Run(absl::Time due, std::function<void()> run) {
  if (stands_still()) {
    waiting_.push_back({.timer = due != absl::InfinitePast(),
                        .due = due,
                        .run = std::move(run)});
  } else if (now() < due) {  // It was suspended, or a rounding was unlucky.
    queue_->At(std::max(TruthOf(due), queue_->now() + absl::Nanoseconds(1)),
               std::move(run), this, due);
  } else {
    run();
  }
}

void SimMachine::StandStill(absl::Duration duration,
                            const StandStillFault& fault) {
  const absl::Time now = queue_->now();
  if (stands_still()) return;
  since_ = now;
  until_ = now + duration;
  suspends_ = fault.suspend;
  order_ = fault.order;
  queue_->At(until_, [this, until = until_] {
    if (until_ == until) GoOn();
  });
}

void SimMachine::GoOn() {
  const absl::Duration stood = queue_->now() - since_;
  stood_still_ += stood;
  if (suspends_) suspended_ += stood;
  suspends_ = false;
  until_ = absl::InfinitePast();
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  if (order_ != WakeOrder::kAsTheyCame) {
    const bool timers_first = order_ == WakeOrder::kTimersFirst;
    std::stable_partition(
        waiting.begin(), waiting.end(),
        [&](const Waiting& event) { return event.timer == timers_first; });
  }
  for (Waiting& event : waiting) {
    queue_->At(queue_->now(), std::move(event.run), this, event.due);
  }
}

void SimMachine::Restart() {
  if (!stands_still()) return;
  const absl::Duration stood = queue_->now() - since_;
  stood_still_ += stood;
  if (suspends_) suspended_ += stood;
  suspends_ = false;
  until_ = absl::InfinitePast();
  waiting_.clear();
}

}  // namespace slackline::sim
