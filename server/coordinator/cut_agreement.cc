#include "server/coordinator/cut_agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {

void CutAgreement::Want(const std::string& reason) {
  SL_CHECK(!IsUnderWay(), "a checkpoint is under way already");
  wanted_ = reason;
}

void CutAgreement::AskFor() {
  if (!wanted_.has_value()) return;
  ClockAgreement::Wish wish{.to = {}, .reason = *std::move(wanted_)};
  wanted_.reset();
  wish.to.mutable_cutting();
  agreement_.Want(std::move(wish));
}

bool CutAgreement::Settle(const std::vector<ClockAgreement::Worker>& workers,
                          const ClockAgreement::Limits& limits,
                          ViewEditor* editor, std::vector<std::string>* log,
                          std::string* dropped) {
  if (!limits.all || workers.empty()) return false;
  const wire::View& view = editor->view();
  const std::optional<wire::Cut> cut = CutOf(workers, limits, view);
  if (!cut.has_value()) {
    *dropped = absl::StrCat("the job ends by itself, at step ", EndOf(view),
                            ", before it");
    log->push_back(absl::StrCat("no checkpoint is taken: ", *dropped));
    return true;
  }
  std::string where = absl::StrCat("at step ", cut->clock());
  if (cut->until_size() > 0) {
    const auto [first, last] = std::minmax_element(
        cut->until().begin(), cut->until().end(),
        [](const auto& a, const auto& b) { return a.clock() < b.clock(); });
    where = absl::StrCat("at the workers' own steps, ", first->clock(), " to ",
                         last->clock());
  }
  log->push_back(absl::StrCat("a checkpoint is taken ", where, ": ",
                              agreement_.wish()->reason));
  editor->SetCut(*cut);
  shards_cut_ = true;
  return true;
}

std::optional<wire::Cut> CutAgreement::CutOf(
    const std::vector<ClockAgreement::Worker>& workers,
    const ClockAgreement::Limits& limits, const wire::View& view) const {
  const absl::StatusOr<const DelayPlan*> plan = delays_.PlanOf(view);
  SL_CHECK(plan.ok(), plan.status().ToString());  // The job has begun with it.
  if (*plan != nullptr) return CutOfPlan(**plan, workers, limits, view);
  wire::Cut cut;
  cut.set_number(view.cut().number() + 1);
  const wire::Phase& phase = view.phase(view.entered());
  const Clock end = EndOfPhase(view, view.entered());
  const ModeRule& rule = RuleOf(phase.mode());
  // Gradients that wait for each other make one update, so all of a clock are
  // before the cut or none of them; and one phase has all of the limits.
  const bool each_for_itself =
      !IsDoneTogether(FirstStepOf(phase)) && !rule.holds_gradients() &&
      limits.largest <= (end == EndOf(view) ? end : end - 1) &&
      std::all_of(limits.of.begin(), limits.of.end(),
                  [&](Clock limit) { return limit >= phase.from(); });
  if (each_for_itself) {
    const Clock smallest =
        *std::min_element(limits.of.begin(), limits.of.end());
    if (smallest >= EndOf(view)) return std::nullopt;
    for (size_t i = 0; i < workers.size(); ++i) {
      wire::Cut::Until& until = *cut.add_until();
      until.set_rank(workers[i].rank);
      until.set_incarnation(workers[i].incarnation);
      until.set_clock(limits.of[i]);
    }
    return cut;
  }
  const Clock clock = ClockWithoutBeginning(limits.largest, view);
  if (clock >= EndOf(view)) return std::nullopt;
  cut.set_clock(clock);
  cut.set_by_worker(WorkersHaveModel(StepAt(view, clock - 1)));
  return cut;
}

std::optional<wire::Cut> CutAgreement::CutOfPlan(
    const DelayPlan& plan, const std::vector<ClockAgreement::Worker>& workers,
    const ClockAgreement::Limits& limits, const wire::View& view) {
  // Who is gone has done all of its steps, or the job would have ended.
  const auto count = static_cast<size_t>(plan.workers());
  std::vector<Clock> at_least(count, EndOf(view));
  std::vector<Incarnation> lives(count, 0);
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto rank = static_cast<size_t>(workers[i].rank);
    at_least.at(rank) = limits.of[i];
    lives.at(rank) = workers[i].incarnation;
  }
  const std::vector<Clock> clocks = plan.CutAt(at_least);
  if (*std::min_element(clocks.begin(), clocks.end()) >= EndOf(view))
    return std::nullopt;
  wire::Cut cut;
  cut.set_number(view.cut().number() + 1);
  for (size_t rank = 0; rank < count; ++rank) {
    wire::Cut::Until& until = *cut.add_until();
    until.set_rank(static_cast<int32_t>(rank));
    until.set_incarnation(lives[rank]);
    until.set_clock(clocks[rank]);
  }
  return cut;
}

void CutAgreement::Keep(coordinator::ModesState* state) const {
  if (wanted_.has_value()) state->set_want_cut(*wanted_);
  state->set_shards_cut(shards_cut_);
}

void CutAgreement::Load(const coordinator::ModesState& state) {
  if (state.has_want_cut()) wanted_ = state.want_cut();
  shards_cut_ = state.shards_cut();
}

}  // namespace slackline
