#include "server/coordinator/mode_control.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

constexpr size_t kFinishReasonBytesMax = 1024;

// Numbers that a worker says of itself, and that are summed up.
wire::Entered Bounded(wire::Entered entered) {
  const auto bound = [](int64_t value) {
    return std::clamp<int64_t>(value, 0, int64_t{1} << 50);
  };
  entered.set_pause_micros(bound(entered.pause_micros()));
  entered.set_connect_micros(bound(entered.connect_micros()));
  entered.set_transfer_micros(bound(entered.transfer_micros()));
  entered.set_bytes(bound(entered.bytes()));
  entered.DiscardUnknownFields();
  return entered;
}

}  // namespace

ModeControl::ModeControl(const Options& options, JobDelays* delays,
                         const Membership* members, ViewEditor* editor)
    : options_(options),
      delays_(delays),
      members_(members),
      editor_(editor),
      changer_(options.sync, delays) {}

std::vector<ModeChanger::Worker> ModeControl::Workers() const {
  std::vector<ModeChanger::Worker> workers;
  for (const auto& [rank, worker] : members_->workers()) {
    workers.push_back({.rank = rank,
                       .incarnation = worker->incarnation,
                       .clock = worker->worker.clock(),
                       .done = worker->done});
  }
  return workers;
}

void ModeControl::OnStart(const JobStart&, CoordinatorEffects* effects) {
  for (std::string& sentence : changer_.Start(editor_))
    effects->log.push_back(std::move(sentence));
  if (options_.sync.has_auto_()) SwitchPolicyOn(effects);
}

void ModeControl::OnGone(const GoneMember& gone, CoordinatorEffects*) {
  if (!editor_->running()) return;
  const Member& member = gone.member;
  news_ = true;
  if (!member.worker_role()) return;
  changer_.OnGone({.rank = member.index(),
                   .incarnation = member.incarnation,
                   .clock = member.worker.clock(),
                   .done = member.done},
                  editor_->next_number());
}

void ModeControl::OnServerStats(int32_t server, const run::ServerStats& stats) {
  // A job knows no other clocks than these.
  changer_.OnServer(
      server, stats.seen_view(),
      std::clamp<Clock>(stats.reached_clock(), 0, EndOf(editor_->view())));
  if (editor_->view().has_change()) news_ = true;
}

void ModeControl::OnCall(const Member& worker, const wire::Call& call,
                         CoordinatorEffects* effects) {
  if (!editor_->running()) return;
  const wire::View& view = editor_->view();
  if (call.has_step_limit()) {
    changer_.OnStepLimit(worker.incarnation, call.step_limit(), view);
  } else if (call.has_arrive()) {
    changer_.OnArrive(worker.incarnation, call.arrive(), view);
  } else if (call.has_entered()) {
    std::optional<wire::JobEnd> end = changer_.OnEntered(
        worker.index(), worker.incarnation, Bounded(call.entered()), view);
    if (end.has_value()) return editor_->End(*std::move(end));
  } else if (call.regroup().group() == view.group()) {
    effects->log.push_back(absl::StrCat(
        Describe(worker),
        " has lost its connections to other workers; all connect anew"));
    return editor_->Regroup();
  }
  news_ = true;
}

bool ModeControl::Advance(const Moment& moment, CoordinatorEffects* effects) {
  if (!editor_->running() || !std::exchange(news_, false)) return false;
  const Clock arrived = editor_->view().arrived();
  ModeChanger::News news = changer_.Advance(Workers(), moment.seconds, editor_);
  // They part now. Should they all-reduce once more, what they told each other
  // to connect is out of date.
  if (editor_->view().arrived() != arrived) editor_->Regroup();
  if (!news.cut_dropped.empty()) cut_dropped_ = std::move(news.cut_dropped);
  std::move(news.log.begin(), news.log.end(), std::back_inserter(effects->log));
  std::move(news.changes.begin(), news.changes.end(),
            std::back_inserter(effects->modes));
  return news.view_changed;
}

absl::StatusOr<std::string> ModeControl::OnSetMode(
    const wire::SetMode& set_mode, CoordinatorEffects* effects) {
  if (!editor_->running())
    return absl::FailedPreconditionError("the job does not run");
  const wire::View& view = editor_->view();
  for (const ModeRule* rule : {&configured(), &RuleOf(set_mode.mode())}) {
    if (!rule->is_of_whole_job()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        rule->whole_job().is,
        " for a whole job, from its first to its last step; start another job "
        "for another mode, or one with ",
        rule->whole_job().command));
  }
  if (options_.servers_look_at_gradients &&
      (set_mode.has_by_policy() ||
       !PushesGradients(RuleOf(set_mode.mode()).StepOf(0)))) {
    return absl::FailedPreconditionError(
        "train.gradient_bound is of gradients that servers apply, and cannot "
        "hold by all-reduce, which the policy may choose, too; use a mode over "
        "servers, or begin again without the bound");
  }
  const absl::Status may_change = changer_.MayChange(view, Workers());
  if (set_mode.has_by_policy()) {
    if (!policy_.has_value() && !may_change.ok()) return may_change;
    if (!policy_.has_value()) SwitchPolicyOn(effects);
    return "will change when the workers' step times speak for it";
  }
  sync::Mode mode = set_mode.mode();
  mode.DiscardUnknownFields();  // Every view and report will have it.
  if (const std::string why = WhyNoMode(mode, options_.workers); !why.empty()) {
    return absl::InvalidArgumentError(why);
  }
  if (!may_change.ok()) return may_change;
  const sync::Mode& present = view.phase(view.entered()).mode();
  const bool same = SameMode(present, mode);
  if (same && !policy_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the mode is ", ModeText(present), " already"));
  }
  if (policy_.has_value()) {
    policy_.reset();
    effects->log.push_back(
        "the mode is no longer chosen by the policy: a user has set it");
  }
  if (same) return absl::StrCat("stays ", ModeText(present));
  return Change(mode, "asked for by a user", effects);
}

absl::StatusOr<std::string> ModeControl::OnFinish(const wire::Finish& finish,
                                                  CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  const std::vector<ModeChanger::Worker> workers = Workers();
  if (view.state() == wire::FINISHED) return "has finished already";
  if (!editor_->running())
    return absl::FailedPreconditionError("the job does not run");
  if (changer_.end().IsUnderWay()) return "is being ended early already";
  // Who asks twice, or late, must not lose the model by that.
  if (members_->AllTrained()) {
    return absl::StrCat(
        "has done all its steps, ", EndOf(view),
        ", and ends when all of its programs have come to their end; the model "
        "is evaluated and kept");
  }
  // Before it could be ended early.
  if (std::any_of(workers.begin(), workers.end(), [&](const auto& worker) {
        return IsAboutToEnd(worker, view);
      })) {
    return absl::StrCat("ends by itself at step ", EndOf(view),
                        ", which is near; the model is evaluated and kept");
  }
  if (configured().is_of_whole_job()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job's ", configured().whole_job().is,
        ", from its first to its last step, so it cannot end early; it can "
        "only be stopped at once, without a model"));
  }
  const std::string reason = Shortened(finish.reason(), kFinishReasonBytesMax);
  changer_.end().Want(reason);
  news_ = true;
  effects->log.push_back(absl::StrCat("the job is to end early: ", reason));
  std::string text = absl::StrCat(
      "ends as soon as all workers have completed the same steps, "
      "of ",
      view.elastic() ? "about " : "", view.steps_total(),
      "; the model is evaluated and kept");
  const auto [slowest, fastest] = std::minmax_element(
      workers.begin(), workers.end(),
      [](const auto& a, const auto& b) { return a.clock < b.clock; });
  if (slowest == workers.end()) return text;
  if (const Clock behind = fastest->clock - slowest->clock;
      behind > kStepLimitAhead) {
    absl::StrAppend(&text, "; worker ", slowest->rank, " has to do about ",
                    behind, " more steps for that");
  }
  return text;
}

absl::Status ModeControl::MayCut() const {
  return changer_.MayCut(editor_->view(), Workers());
}

void ModeControl::WantCut(const std::string& reason) {
  changer_.cut().Want(reason);
  news_ = true;
}

void ModeControl::CutDone() {
  changer_.cut().Done();
  news_ = true;
}

std::string ModeControl::Change(const sync::Mode& mode,
                                const std::string& reason,
                                CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  std::string text = absl::StrCat("will change from ",
                                  ModeText(view.phase(view.entered()).mode()),
                                  " to ", ModeText(mode));
  if (view.move_size() > 0) {
    absl::StrAppend(&text, " once ", view.move_size(),
                    " moves of shards are done");
  }
  effects->log.push_back(absl::StrCat("the mode ", text, ": ", reason));
  changer_.Want(mode, reason);
  news_ = true;
  return text;
}

void ModeControl::SwitchPolicyOn(CoordinatorEffects* effects) {
  policy_.emplace(ModePolicy::Options{
      .config = options_.sync.auto_(),  // Defaults if the config has none.
      .heartbeat = options_.heartbeat});
  effects->log.push_back(
      "the mode is chosen by the policy: by how even the workers' step times "
      "are");
}

void ModeControl::AskPolicy(absl::Time now, CoordinatorEffects* effects) {
  if (!policy_.has_value() || !editor_->running()) return;
  std::vector<ModePolicy::Worker> workers;
  for (const auto& [rank, worker] : members_->workers()) {
    if (worker->done) continue;
    workers.push_back({.rank = rank,
                       .incarnation = worker->incarnation,
                       .clock = worker->worker.clock(),
                       .compute_seconds = worker->worker.compute_seconds()});
  }
  const wire::View& view = editor_->view();
  const bool may_change = changer_.MayChange(view, Workers()).ok();
  const std::optional<ModePolicy::Decision> decision = policy_->Look(
      workers, view.phase(view.entered()).mode(), may_change, now);
  if (!decision.has_value()) return;
  Change(decision->mode, decision->reason, effects);
}

WakeUp ModeControl::NextWakeUp() const {
  if (!editor_->running() || !policy_.has_value()) return {};
  return {.at = policy_->NextLook()};
}

absl::Status ModeControl::MayMove() const {
  return changer_.MayMove(editor_->view(), Workers());
}

std::string ModeControl::WhyNoneJoins() const {
  if (editor_->running() && configured().is_of_whole_job()) {
    return absl::StrCat(
        "the job's ", configured().whole_job().is,
        ", and no worker joins it once it runs; start the job again");
  }
  return ModeChanger::WhyNoneJoins(editor_->view());
}

void ModeControl::Keep(absl::Time, KeptState* kept) {
  coordinator::ModesState state;
  changer_.Keep(&state);
  state.set_policy(policy_.has_value());
  kept->Put("modes", state);
}

absl::Status ModeControl::Load(const StateReader& reader, const Moment&,
                               CoordinatorEffects* effects) {
  const wire::View& view = editor_->view();
  if (view.phase_size() == 0) return absl::OkStatus();
  coordinator::ModesState state;
  SL_RETURN_IF_ERROR(reader.Read("modes", &state));
  if (state.reason_size() != view.phase_size() ||
      (view.has_change() && !state.has_wanted())) {
    return reader.Broken("modes", "it does not fit the view");
  }
  changer_.Load(state);
  if (state.policy()) SwitchPolicyOn(effects);
  news_ = true;
  return absl::OkStatus();
}

void ModeControl::PutStatus(const StatusQuestion& question,
                            wire::StatusReply* status) const {
  for (const run::ModeRecord& record : changer_.last_changes())
    *status->add_mode_changed() = record;
  if (policy_.has_value())
    status->set_mode_policy(policy_->Text(question.moment.now));
}

void ModeControl::PutSummary(run::Summary* summary) const {
  summary->set_mode_changes(changer_.changes());
}

}  // namespace slackline
