#include "common/sync/phases.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
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

Clock NeededClock(const wire::View& view, Clock clock) {
  const int index = IndexAt(view, clock);
  const wire::Phase& phase = view.phase(index);
  Clock needed = clock;
  if (phase.mode() == wire::SSP) needed = clock - phase.staleness();
  if (phase.mode() == wire::ASP) needed = std::numeric_limits<Clock>::min();
  if (index == 0) return needed;
  const wire::Mode before = view.phase(index - 1).mode();
  const bool after_sync = before == wire::BSP || before == wire::ALLREDUCE;
  return after_sync ? std::max<Clock>(needed, phase.from()) : needed;
}

std::string ModeText(wire::Mode mode, int64_t staleness) {
  switch (mode) {
    case wire::BSP:
      return "bsp";
    case wire::SSP:
      return absl::StrCat("ssp:", staleness);
    case wire::ASP:
      return "asp";
    case wire::ALLREDUCE:
      return "allreduce";
    default:
      return "unknown";
  }
}

}  // namespace slackline
