#include "server/coordinator/clock_agreement.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {

void ClockAgreement::Want(Wish wish) {
  SL_CHECK(!wish_.has_value(), "the workers agree on another clock already");
  wish_ = std::move(wish);
  limits_.clear();
}

bool ClockAgreement::Open(ViewEditor* editor) {
  const wire::View& view = editor->view();
  if (!wish_.has_value() || view.has_change() || view.move_size() > 0)
    return false;
  editor->OpenChange(wish_->to);
  return true;
}

void ClockAgreement::Close(ViewEditor* editor) {
  editor->CloseChange();
  wish_.reset();
  limits_.clear();
}

void ClockAgreement::OnStepLimit(Incarnation incarnation,
                                 const wire::StepLimit& limit,
                                 const wire::View& view) {
  if (!view.has_change() || view.change().id() != limit.change()) return;
  const Clock clock = std::clamp<Clock>(limit.clock(), 0, kClockMax);
  Clock& known = limits_.try_emplace(incarnation, clock).first->second;
  known = std::max(known, clock);
}

void ClockAgreement::OnGone(Incarnation incarnation, uint64_t view_number) {
  gone_in_ = view_number;
  limits_.erase(incarnation);
}

void ClockAgreement::OnServer(int32_t server, uint64_t seen_view,
                              Clock reached) {
  servers_[server] = {.seen_view = seen_view, .clock = reached};
}

// Where gradients of a clock wait for each other, one of a worker that has gone
// may wait at a shard, acknowledged, while all others have stopped at their
// limits: in BACKUP a shard's clock is that of its fastest workers, and in BSP
// a worker that has not seen the change can be one step further than they. The
// others have to get past that clock by the old mode, or that gradient is in no
// update. How far the gone got only the shards know, once they have heard that
// nobody of them will push any more. A server that has got a shard since, by a
// move or in the place of an owner that has lost it, says where that shard is
// once it has seen that it owns it. In the other modes nothing waits, and
// nobody has to be where a worker was that has gone.
std::optional<Clock> ClockAgreement::ReachedByTheGone(
    const ViewEditor& editor) const {
  const wire::View& view = editor.view();
  Clock reached = 0;
  // An early end comes in any phase; a change only once the last has begun.
  const bool holds_gradients =
      std::any_of(view.phase().begin() + view.entered(), view.phase().end(),
                  [](const wire::Phase& phase) {
                    return RuleOf(phase.mode()).holds_gradients();
                  });
  if (!holds_gradients || gone_in_ == 0) return reached;
  const uint64_t seen_view_min = std::max(gone_in_, editor.owners_since());
  for (const wire::ServerMember& server : view.server()) {
    if (!editor.OwnsShards(server.index())) continue;
    const auto report = servers_.find(server.index());
    if (report == servers_.end() || report->second.seen_view < seen_view_min)
      return std::nullopt;
    reached = std::max(reached, report->second.clock);
  }
  return reached;
}

ClockAgreement::Limits ClockAgreement::LimitsOf(
    const std::vector<Worker>& workers, const ViewEditor& editor) const {
  const wire::View& view = editor.view();
  const std::optional<Clock> reached = ReachedByTheGone(editor);
  Limits limits{
      .of = {}, .largest = reached.value_or(0), .all = reached.has_value()};
  for (const Worker& worker : workers) {
    const auto limit = limits_.find(worker.incarnation);
    if (!worker.done && limit == limits_.end()) {
      limits.all = false;
      continue;
    }
    // Who is done is past any earlier clock.
    limits.of.push_back(worker.done ? EndOf(view)
                                    : std::min(limit->second, EndOf(view)));
    limits.largest = std::max(limits.largest, limits.of.back());
  }
  return limits;
}

void ClockAgreement::Keep(coordinator::ModesState* state) const {
  if (wish_.has_value()) {
    *state->mutable_wanted()->mutable_to() = wish_->to;
    state->mutable_wanted()->set_reason(wish_->reason);
  }
  state->mutable_limit()->insert(limits_.begin(), limits_.end());
  state->set_gone_in(gone_in_);
}

void ClockAgreement::Load(const coordinator::ModesState& state) {
  if (state.has_wanted())
    wish_ = Wish{.to = state.wanted().to(), .reason = state.wanted().reason()};
  limits_.insert(state.limit().begin(), state.limit().end());
  gone_in_ = state.gone_in();
}

bool IsAboutToEnd(const ClockAgreement::Worker& worker,
                  const wire::View& view) {
  return worker.done || worker.clock + kStepLimitAhead >= EndOf(view);
}

Clock ClockWithoutBeginning(Clock clock, const wire::View& view) {
  for (const wire::Phase& phase : view.phase()) clock += phase.from() == clock;
  return clock;
}

std::string TooLateText(const std::string& what, const wire::View& view) {
  return absl::StrCat(what, ": the job ends at step ", EndOf(view),
                      ", before all workers could");
}

}  // namespace slackline
