#include "common/sync/dssp_controller.h"

#include <algorithm>

namespace slackline {
namespace {

// Steps in [0, steps_max] after which the leader comes closest to a push of the
// slowest worker: after r steps it is at `lead` + r `lead_interval`; the pushes
// come at `slow` + k `slow_interval`, k = 1, 2, ... The fewest of equal ones.
int64_t StepsWithLeastWait(absl::Time lead, absl::Duration lead_interval,
                           absl::Time slow, absl::Duration slow_interval,
                           int64_t steps_max) {
  int64_t best = 0;
  absl::Duration least = absl::InfiniteDuration();
  for (int64_t steps = 0; steps <= steps_max; ++steps) {
    const absl::Duration after = lead + steps * lead_interval - slow;
    absl::Duration rest;
    const int64_t before =
        std::max<int64_t>(0, absl::IDivDuration(after, slow_interval, &rest));
    for (const int64_t k : {std::max<int64_t>(1, before), before + 1}) {
      const absl::Duration wait = absl::AbsDuration(k * slow_interval - after);
      if (wait >= least) continue;
      least = wait;
      best = steps;
    }
  }
  return best;
}

}  // namespace

DsspController::Pace& DsspController::PaceOf(Rank rank,
                                             Incarnation incarnation) {
  Pace& pace = paces_[rank];
  if (pace.incarnation != incarnation) {
    pace = Pace();
    pace.incarnation = incarnation;
  }
  return pace;
}

void DsspController::OnPush(Rank rank, Incarnation incarnation, Clock clock,
                            absl::Time now) {
  Pace& pace = PaceOf(rank, incarnation);
  pace.interval = pace.clock + 1 == clock && pace.clock >= 0
                      ? now - pace.time
                      : absl::ZeroDuration();
  pace.clock = clock;
  pace.time = now;
}

bool DsspController::Grants(const StalenessGate::Pull& pull,
                            const StalenessGate& gate, int64_t steps_max) {
  Pace& lead = PaceOf(pull.rank, pull.incarnation);
  if (pull.clock < lead.granted) return true;
  if (pull.clock <= lead.decided) return false;
  lead.decided = pull.clock;
  for (const StalenessGate::Participant& other : gate.participants()) {
    if (other.clock > pull.clock) return false;
  }
  const StalenessGate::Participant* const slowest = gate.Slowest();
  if (slowest == nullptr || slowest->rank == pull.rank) return false;
  const Pace& slow = PaceOf(slowest->rank, slowest->incarnation);
  if (lead.interval <= absl::ZeroDuration() ||
      slow.interval <= absl::ZeroDuration()) {
    return false;
  }
  lead.granted =
      pull.clock + StepsWithLeastWait(lead.time, lead.interval, slow.time,
                                      slow.interval, steps_max);
  return pull.clock < lead.granted;
}

}  // namespace slackline
