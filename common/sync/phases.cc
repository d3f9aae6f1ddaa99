#include "common/sync/phases.h"

#include <algorithm>
#include <limits>

#include "common/status.h"

namespace slackline {
namespace {

int IndexAt(const wire::View& view, Clock clock) {
  SL_CHECK(clock >= 0 && view.phase_size() > 0,
           "a clock below 0, or a view without phases");
  int index = 0;
  while (index + 1 < view.phase_size() &&
         view.phase(index + 1).from() <= clock) {
    ++index;
  }
  return index;
}

}  // namespace

const wire::Phase& PhaseAt(const wire::View& view, Clock clock) {
  return view.phase(IndexAt(view, clock));
}

const wire::Phase* PhaseAfter(const wire::View& view, Clock clock) {
  const int next = IndexAt(view, clock) + 1;
  return next < view.phase_size() ? &view.phase(next) : nullptr;
}

Clock NeededClock(const wire::View& view, Clock clock, bool granted) {
  const int index = IndexAt(view, clock);
  const wire::Phase& phase = view.phase(index);
  Clock needed = clock;
  switch (phase.mode()) {
    case wire::SSP:
      needed = clock - phase.staleness();
      break;
    case wire::DSSP:
      needed = clock - (granted ? phase.staleness_max() : phase.staleness());
      break;
    case wire::ASP:
    case wire::BACKUP:
      needed = std::numeric_limits<Clock>::min();
      break;
    default:
      break;
  }
  if (index == 0) return needed;
  const wire::Mode before = view.phase(index - 1).mode();
  const bool after_sync = before == wire::BSP || before == wire::ALLREDUCE;
  return after_sync ? std::max<Clock>(needed, phase.from()) : needed;
}

Clock NeededCompleteClock(const wire::View& view, Clock clock) {
  const int index = IndexAt(view, clock);
  const wire::Phase& phase = view.phase(index);
  if (phase.mode() == wire::BACKUP) return clock;
  const bool after_backup =
      index > 0 && view.phase(index - 1).mode() == wire::BACKUP;
  return after_backup ? phase.from() : 0;
}

}  // namespace slackline
