#include "common/sync/dssp_controller.h"

#include <algorithm>
#include <cstdint>

#include "absl/numeric/int128.h"

namespace slackline {
namespace {

// The x in [0, x_max] for which (start + x step) mod modulus is smallest, and
// that value; the smallest such x. `start` and `step` are in [0, modulus).
//
// Every new smallest value is reached from the last one by the shortest walk
// that lowers the value by no more than what is left of it. The walks that
// lower and raise it least so far are neighbours in a Stern-Brocot tree, and
// the sum of the two is the next one: Euclid's algorithm for (step, modulus),
// whose runs of equal choices are divisions. So the cost is the logarithm of
// the modulus.
struct Smallest {
  int64_t x = 0;
  int64_t value = 0;
};
Smallest SmallestRemainder(int64_t start, int64_t step, int64_t modulus,
                           int64_t x_max) {
  Smallest best = {.x = 0, .value = start};
  if (step == 0) return best;
  struct {
    int64_t length = 1;
    int64_t change = 0;
  } up = {.change = step}, down = {.change = modulus - step};
  while (best.value > 0) {
    while (down.change > best.value) {
      if (down.change > up.change) {
        const int64_t excess = down.change - best.value;
        const int64_t times = std::min((excess + up.change - 1) / up.change,
                                       (down.change - 1) / up.change);
        down.change -= times * up.change;
        down.length += times * up.length;
      } else if (up.change > down.change) {
        const int64_t times = (up.change - 1) / down.change;
        up.change -= times * down.change;
        up.length += times * down.length;
      } else {
        return best;  // Their sum is a whole period.
      }
      if (down.length > x_max) return best;
    }
    const int64_t wanted = best.value / down.change;
    const int64_t times = std::min(wanted, (x_max - best.x) / down.length);
    best.x += times * down.length;
    best.value -= times * down.change;
    if (times < wanted) return best;
  }
  return best;
}

// Steps in [0, steps_max] after which the leader comes closest to a push of the
// slowest worker: after r steps it is at `lead` + r `lead_interval`; the pushes
// come at `slow` + k `slow_interval`, k = 1, 2, ... The fewest of equal ones.
int64_t StepsWithLeastWait(absl::Time lead, absl::Duration lead_interval,
                           absl::Time slow, absl::Duration slow_interval,
                           int64_t steps_max) {
  if (steps_max <= 0) return 0;
  const int64_t after = absl::ToInt64Nanoseconds(lead - slow);
  const int64_t step =
      std::max<int64_t>(1, absl::ToInt64Nanoseconds(lead_interval));
  const int64_t period =
      std::max<int64_t>(1, absl::ToInt64Nanoseconds(slow_interval));
  // Until the first of the pushes, each step comes closer to it.
  const absl::int128 room = absl::int128(period) - after;
  absl::int128 first = 0;  // Steps that end behind that push, from here on.
  absl::int128 least = -1;
  int64_t best = 0;
  if (room >= 0) {
    const absl::int128 steps = room / step;
    if (steps >= steps_max) return steps_max;
    best = static_cast<int64_t>(steps);
    least = room - steps * step;
    first = steps + 1;
  }
  // Behind it, the distance to the push before or to the one after.
  const auto modulo = [&](absl::int128 value) {
    const absl::int128 rest = value % period;
    return static_cast<int64_t>(rest < 0 ? rest + period : rest);
  };
  const absl::int128 at = after + first * step;
  const int64_t more = steps_max - static_cast<int64_t>(first);
  for (const Smallest& found :
       {SmallestRemainder(modulo(at), modulo(step), period, more),
        SmallestRemainder(modulo(-at), modulo(-step), period, more)}) {
    const int64_t steps = static_cast<int64_t>(first) + found.x;
    if (least >= 0 &&
        (found.value > least || (found.value == least && steps >= best))) {
      continue;
    }
    least = found.value;
    best = steps;
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
                            const Participants& participants,
                            int64_t steps_max) {
  Pace& lead = PaceOf(pull.rank, pull.incarnation);
  if (pull.clock < lead.granted) return true;
  if (pull.clock <= lead.decided) return false;
  lead.decided = pull.clock;
  if (participants.MaxClock() > pull.clock) return false;
  const Participant* const slowest = participants.Slowest();
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
