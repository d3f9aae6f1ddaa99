#include "server/coordinator/early_end.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"

namespace slackline {

void EarlyEnd::AskFor() {
  if (!wanted_.has_value()) return;
  ClockAgreement::Wish wish{.to = {}, .reason = *std::move(wanted_)};
  wanted_.reset();
  wish.to.mutable_ending();
  agreement_.Want(std::move(wish));
}

bool EarlyEnd::Settle(const ClockAgreement::Limits& limits, ViewEditor* editor,
                      std::vector<std::string>* log) {
  const wire::View& view = editor->view();
  const Clock clock = ClockWithoutBeginning(limits.largest, view);
  if (clock >= EndOf(view)) {
    log->push_back(TooLateText("the job does not end early", view));
    return true;
  }
  if (!limits.all) return false;
  ended_early_ = agreement_.wish()->reason;
  log->push_back(absl::StrCat("the job ends early, at step ", clock, " of ",
                              view.steps_total(), ": ", ended_early_));
  editor->SetEndClock(clock);
  return true;
}

void EarlyEnd::Keep(coordinator::ModesState* state) const {
  if (wanted_.has_value()) state->set_want_end(*wanted_);
  state->set_ended_early(ended_early_);
}

void EarlyEnd::Load(const coordinator::ModesState& state) {
  if (state.has_want_end()) wanted_ = state.want_end();
  ended_early_ = state.ended_early();
}

}  // namespace slackline
