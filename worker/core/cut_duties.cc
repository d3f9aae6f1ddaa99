#include "worker/core/cut_duties.h"

#include <algorithm>

#include "common/sync/phases.h"

namespace slackline {

std::optional<worker_action::KeepState> CutDuties::KeepStateAt(const View& view,
                                                               Clock clock) {
  const wire::Cut& cut = view.proto().cut();
  // Whoever becomes the chief beyond that clock has not got that state any
  // more, and the coordinator does not wait for it.
  if (!cut.by_worker() || cut.number() <= kept_cut_ || clock != cut.clock())
    return std::nullopt;
  kept_cut_ = cut.number();
  return worker_action::KeepState{.cut = cut.number(), .clock = clock};
}

std::optional<worker_action::KeepProgram> CutDuties::KeepProgramAt(
    const View& view, Incarnation self, Clock clock) {
  const wire::Cut& cut = view.proto().cut();
  if (cut.number() <= program_cut_) return std::nullopt;
  Clock limit = cut.clock();
  if (cut.until_size() > 0) {
    const auto own = std::find_if(
        cut.until().begin(), cut.until().end(),
        [&](const wire::Cut::Until& u) { return u.incarnation() == self; });
    if (own == cut.until().end()) return std::nullopt;
    limit = own->clock();
  }
  // It has begun no step at its limit before it knew the cut, so beyond it only
  // others' steps have taken it, and the program is as it was.
  if (clock < limit) return std::nullopt;
  program_cut_ = cut.number();
  return worker_action::KeepProgram{.cut = cut.number(),
                                    .clock = limit,
                                    .last = clock >= EndOf(view.proto())};
}

}  // namespace slackline
