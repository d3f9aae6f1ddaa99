#include "tools/cli/job/mode_watch.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace slackline {

void ModeWatch::Update(const wire::StatusReply& status) {
  const wire::View& view = status.view();
  moves_ = view.move_size();
  steps_total_ = view.steps_total();
  slowest_ = status.worker().empty() ? 0 : std::numeric_limits<int64_t>::max();
  for (const run::WorkerStats& worker : status.worker()) {
    slowest_ = std::min(slowest_, worker.clock());
  }
  int index = phases_before_;
  while (index < view.phase_size() &&
         !SameMode(view.phase(index).mode(), wanted_)) {
    ++index;
  }
  if (index == view.phase_size()) {
    // A change is open as soon as no moves hold it back.
    state_ = view.change().has_mode() ? State::kOpen
             : moves_ > 0             ? State::kWaitsForMoves
                                      : State::kDropped;
    return;
  }
  phase_ = view.phase(index);
  if (view.entered() < index) {
    state_ = State::kSettled;
    return;
  }
  state_ = State::kDone;
  for (const run::ModeRecord& record : status.mode_changed()) {
    if (record.from_clock() == phase_.from()) record_ = record;
  }
}

std::string ModeWatch::Line() const {
  const std::string mode = ModeText(wanted_);
  switch (state_) {
    case State::kWaitsForMoves:
      return absl::StrCat("the change to ", mode, " waits until ", moves_,
                          moves_ == 1 ? " shard has" : " shards have",
                          " moved");
    case State::kOpen:
      return absl::StrCat("the workers settle from which clock on ", mode,
                          " holds");
    case State::kSettled:
      return absl::StrCat(mode, " holds from clock ", phase_.from(),
                          "; the slowest worker is at ", slowest_);
    case State::kDone:
      return absl::StrCat(mode, " holds since clock ", phase_.from());
    case State::kDropped:
      break;
  }
  return absl::StrCat("the change to ", mode,
                      " was dropped: the job ends at step ", steps_total_,
                      ", before all workers could change");
}

}  // namespace slackline
