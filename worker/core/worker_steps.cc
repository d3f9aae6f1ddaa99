#include "worker/core/worker_steps.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "common/sync/phases.h"
#include "common/view/initializer.h"

namespace slackline {

using State = WorkerStage;

WorkerSteps::WorkerSteps(const WorkerCoreOptions& options)
    : options_(options),
      step_examples_(options.member.join.has_elastic()),
      evaluations_(options.evaluate_every) {}

void WorkerSteps::Begin(const WorkerParts& parts) {
  const View& view = parts.view();
  ClientCore::Options client = options_.client;
  client.rank = parts.rank;
  client.incarnation = parts.member.incarnation();
  client.run = parts.member.run();
  client_.emplace(client, parts.member.view());
  cut_duties_.Begin(view);
  const wire::WorkerMember& self = *view.FindWorker(parts.rank);
  const bool founder = self.founder();
  // A job that goes on has its state on the servers: all begin over them.
  const bool has_model = founder ? !BeginsWithCheckpoint(view.proto()) &&
                                       WorkersHaveModel(StepAt(view.proto(), 0))
                                 : JoinsWorkersWithModel(view);
  follower_.emplace(
      PhaseFollower::Options{
          .rank = parts.rank,
          .begins_at = founder && !has_model ? self.begins_at() : -1},
      has_model);
  parts.Log(absl::StrCat("the job runs: ", view.workers().size(), " workers, ",
                         options_.member.join.has_elastic() ? "about " : "",
                         view.proto().steps_total(), " steps"));
  if (has_model) {
    clock_ = founder ? 0 : -1;
    group_.BeginWith(founder && BeginsWithWorker(view.proto()));
    parts.counts.group_joins += !founder;
    parts.Enter(State::kInitializing);
    return parts.Act(worker_action::Initialize{});
  }
  parts.Enter(State::kJoinPull);
  // Where delays are given its first values may be made of others' gradients,
  // which wait for its promise.
  Notify(parts, follower_->Promise(view));
  ClientCore::Effects sent;
  pulls_.Join({*client_, parts.now, &sent});
  parts.Send(*client_, std::move(sent));
}

void WorkerSteps::OnInitialized(const WorkerParts& parts) {
  if (parts.state == State::kInitializing) parts.Ask(DecideNext{});
}

// ---- Events of the network --------------------------------------------------

void WorkerSteps::FollowView(const std::shared_ptr<const View>& view,
                             absl::Time now, ClientCore::Effects* effects) {
  tables_.OnView(*view);
  client_->OnView(view, now, effects);
}

void WorkerSteps::OnView(const WorkerParts& parts) {
  const View& view = parts.view();
  if (!group_.IsOf(view)) TellGroupLost(parts);
  // Who is held up in a step tells where it will stop: the others may wait for
  // that, and it for them.
  if (parts.state < State::kDone) Notify(parts, follower_->Promise(view));
  switch (parts.state) {
    case State::kWaiting:
      if (view.number() > waited_view_) parts.Ask(DecideNext{});
      return;
    case State::kAwaitingExamples:  // The end, or by all-reduce another group.
      return parts.Ask(DecideNext{});
    case State::kGiving:  // Who was to install the rest may have died.
      return ReadShare(parts);
    default:
      // One that is at the end decides nothing any more.
      if (parts.state >= State::kDraining) KeepProgramIfDue(parts);
      return;
  }
}

void WorkerSteps::OnBrought(const WorkerParts& parts,
                            const std::vector<BroughtTable>& brought) {
  for (const BroughtTable& table : brought) {
    if (table.pull_id != pulls_.id() || !tables_.is_missing()) continue;
    // What has completed its pull comes with all of it.
    std::optional<TableValues> values =
        client_->BroughtBy(pulls_.id(), table.table);
    if (values.has_value()) TakeTable(parts, *std::move(values));
  }
}

void WorkerSteps::OnPulled(const WorkerParts& parts, PullResult result) {
  if (pulls_.TakesState(result)) {
    parts.effects.state = std::make_shared<const PullResult>(std::move(result));
    // The next pull has waited for this.
    if (parts.state == State::kComputing && !pulls_.is_open() &&
        pulls_.parameters() == nullptr) {
      PullAhead(parts);
    }
    return;
  }
  SL_CHECK(result.pull_id == pulls_.id(),
           "an answer to a pull that was not asked for");
  pulls_.Close();
  PulledParameters pulled =
      std::make_shared<const PullResult>(std::move(result));
  parts.effects.pulled.push_back(pulled);
  switch (parts.state) {
    case State::kJoinPull:
      return OnJoined(parts, std::move(pulled));
    case State::kAskingState:
      parts.Enter(State::kTakingState);
      return parts.Act(worker_action::TakeState{.state = std::move(pulled)});
    case State::kFinalPull:
      parts.Enter(State::kConcluding);
      return parts.Act(
          worker_action::Conclude{.parameters = std::move(pulled)});
    default:
      break;
  }
  if (tables_.is_missing()) {
    for (const TableId table : tables_.Missing())
      TakeTable(parts, pulled->Of(table));
    tables_.Complete();
    step_examples_.OnParameters(pulls_.HasOwn(clock_));
    return PullAhead(parts);
  }
  pulls_.Keep(std::move(pulled));
  if (parts.state == State::kPulling) return StepOverServers(parts);
  if (parts.state == State::kGiving) return GoOnAfterGiving(parts);
}

void WorkerSteps::OnClient(const WorkerParts& parts) {
  if (parts.state == State::kPulling && CanBeginByTable(parts))
    BeginComputing(parts, nullptr);
  AskStateIfFree(parts);
  ActWhenAcknowledged(parts);
}

bool WorkerSteps::OnAnswer(const WorkerParts& parts,
                           const MemberCore::CallResult& answer) {
  if (step_examples_.Awaits(answer.call_id)) {
    OnGranted(parts, answer.reply);
    return true;
  }
  // The program gets the answer.
  if (place_.OnCallOver(answer.call_id)) SayWhereItGoesOn(parts);
  return false;
}

void WorkerSteps::ActWhenAcknowledged(const WorkerParts& parts) {
  if (client_->unacknowledged_bytes() != 0) return;
  if (parts.state == State::kAwaitingExamples) return AskForExamples(parts);
  if (parts.state == State::kDraining) return Finish(parts);
  if (parts.state != State::kPushed) return;
  parts.Enter(State::kAskingState);
  ClientCore::Effects sent;
  pulls_.AskToTakeState({*client_, parts.now, &sent}, clock_);
  parts.Send(*client_, std::move(sent));
}

// ---- What next --------------------------------------------------------------

void WorkerSteps::Notify(const WorkerParts& parts,
                         std::vector<wire::Call> calls) {
  for (wire::Call& call : calls) {
    if (call.has_entered()) {
      wire::Entered& entered = *call.mutable_entered();
      change_times_.Describe(parts.now, &entered);
      const Clock clock = std::max<Clock>(clock_, 0);
      parts.Log(absl::StrFormat(
          "%s from clock %d on, after %.1f ms",
          ModeText(PhaseAt(parts.view().proto(), clock).mode()), entered.from(),
          static_cast<double>(entered.pause_micros()) / 1000));
    }
    parts.Notify(std::move(call));
  }
}

void WorkerSteps::SayWhereItGoesOnAt(const WorkerParts& parts, Clock step) {
  place_.GoOnAt(step);
  SayWhereItGoesOn(parts);
}

void WorkerSteps::SayWhereItGoesOn(const WorkerParts& parts) {
  if (IsOver(parts.state)) return;
  std::optional<wire::Call> call = place_.ToTell();
  if (call.has_value()) parts.Notify(*std::move(call));
}

void WorkerSteps::KeepPartsOfCheckpoint(const WorkerParts& parts) {
  if (has_model() && parts.IsChief()) {
    const std::optional<worker_action::KeepState> keep =
        cut_duties_.KeepStateAt(parts.view(), clock_);
    parts.counts.states_kept += keep.has_value();
    if (keep.has_value()) parts.Act(*keep);
  }
  KeepProgramIfDue(parts);
}

void WorkerSteps::KeepProgramIfDue(const WorkerParts& parts) {
  if (!options_.member.join.keeps_state()) return;
  const std::optional<worker_action::KeepProgram> keep =
      cut_duties_.KeepProgramAt(parts.view(), parts.member.incarnation(),
                                clock_);
  parts.counts.programs_kept += keep.has_value();
  if (keep.has_value()) parts.Act(*keep);
}

void WorkerSteps::EvaluateIfDue(const WorkerParts& parts,
                                const PulledParameters& parameters) {
  const Clock end = EndOf(parts.view().proto());
  if (!evaluations_.Begin(clock_, end) || !parts.IsChief()) return;
  parts.Act(worker_action::Evaluate{.clock = clock_, .parameters = parameters});
}

void WorkerSteps::Decide(const WorkerParts& parts) {
  KeepPartsOfCheckpoint(parts);
  PhaseFollower::Decision decision = follower_->Next(parts.view(), clock_);
  const bool steps = decision.what == PhaseFollower::Do::kStep;
  if (!steps) change_times_.Begin(parts.now);
  Notify(parts, std::move(decision.calls));
  if (steps) change_times_.End();
  Do(parts, decision);
}

void WorkerSteps::Do(const WorkerParts& parts,
                     const PhaseFollower::Decision& decision) {
  using Do = PhaseFollower::Do;
  switch (decision.what) {
    case Do::kStep:
      return Step(parts, decision.step);
    case Do::kWait:
      waiting_for_ = decision.waiting_for;
      waited_view_ = parts.view().number();
      return parts.Enter(State::kWaiting);
    case Do::kTakeState:
      // Nothing was asked for ahead: the phases of the next clock were known.
      pulls_.Drop();
      change_times_.OnMoving(parts.now);
      parts.Enter(State::kPushed);
      return ActWhenAcknowledged(parts);
    case Do::kConnect:
      return BeginConnecting(parts);
    case Do::kGiveState:
      parts.Act(worker_action::LeaveGroup{});
      ++parts.counts.states_given;
      change_times_.OnMoving(parts.now);
      parts.Enter(State::kGiving);
      return ReadShare(parts);
    case Do::kFinish:
      if (has_model()) {
        parts.Act(worker_action::LeaveGroup{});
        return Finish(parts);
      }
      parts.Enter(State::kDraining);
      return ActWhenAcknowledged(parts);
  }
}

void WorkerSteps::Step(const WorkerParts& parts, StepKind kind) {
  step_ = kind;
  switch (kind) {
    case StepKind::kOverServers:
      return StepOverServers(parts);
    case StepKind::kAllReduce:
      return StepByAllReduce(parts);
  }
}

void WorkerSteps::Finish(const WorkerParts& parts) {
  parts.member.Cancel(step_examples_.Close());  // Nothing is left to be given.
  parts.Enter(State::kTrained);
  parts.Ask(StepsDone{});
}

void WorkerSteps::StepDone(const WorkerParts& parts, double loss) {
  if (!std::isfinite(loss) && std::exchange(loss_was_finite_, false)) {
    const auto self = static_cast<int32_t>(parts.rank);
    const std::string what = absl::StrCat(
        "the loss is ", loss, " at step ", clock_, " of worker ", self,
        ": the training has diverged; lower the learning rate");
    // No worker has a use for this model any more.
    if (StopsAtNonfinite()) {
      return parts.Ask(HasDiverged{
          .why = absl::StrCat(what, ", or set train { nonfinite: SKIP }"),
          .workers = {self},
          .clock = clock_});
    }
    parts.Log(what);
  }
  loss_was_finite_ = std::isfinite(loss);
  asked_ = false;
  ++clock_;
  ++parts.counts.steps;
  parts.counts.ranges += step_examples_.examples().has_value();
  step_examples_.OnStep(IsDoneTogether(step_));
  evaluations_.OnStep();
  AskForExamples(parts);
  // A model that the workers have is evaluated now, since whoever joins may be
  // the chief in the next step. With elastic sampling nobody knows yet that
  // this step was not the last one, and StepByAllReduce() asks.
  if (has_model() && !step_examples_.elastic()) EvaluateIfDue(parts, nullptr);
  parts.Ask(DecideNext{});
}

void WorkerSteps::Conclude(const WorkerParts& parts) {
  ++parts.counts.conclusions;
  if (has_model()) {
    parts.Enter(State::kConcluding);
    return parts.Act(worker_action::Conclude{});
  }
  // Every push is acknowledged, so this will be the final model.
  parts.Enter(State::kFinalPull);
  ClientCore::Effects sent;
  pulls_.AskModel({*client_, parts.now, &sent}, clock_);
  parts.Send(*client_, std::move(sent));
}

// ---- Over servers -----------------------------------------------------------

void WorkerSteps::OnJoined(const WorkerParts& parts, PulledParameters pulled) {
  ClientCore::Effects sent;
  clock_ = client_->StartAt(*pulled, parts.now, &sent);
  const auto [smallest, largest] = pulled->ShardClocks();
  const wire::WorkerMember* const self = parts.view().FindWorker(parts.rank);
  const bool founder = self != nullptr && self->founder();
  parts.counts.late_starts += clock_ > 0 && !founder;
  parts.counts.resumed_starts += clock_ > 0 && founder;
  parts.counts.uneven_starts += smallest < largest;
  // What the join returned may be older than a later start clock.
  if (clock_ == 0) pulls_.Keep(std::move(pulled));
  if (clock_ > 0) {
    parts.Log(absl::StrCat(
        founder ? "goes on at clock " : "joining the running job at clock ",
        clock_));
  }
  // The job before has evaluated that model, as no job does that of clock 0.
  if (founder) evaluations_.BeginAfter(clock_);
  parts.Send(*client_, std::move(sent));
  AskStateIfFree(parts);
  // Others may begin at earlier steps, and wait for it at a collective there,
  // while it waits for their pushes.
  if (founder && clock_ > 0) SayWhereItGoesOnAt(parts, clock_);
  parts.Ask(DecideNext{});
}

void WorkerSteps::AskForParameters(const WorkerParts& parts, Clock clock) {
  ClientCore::Effects sent;
  pulls_.Ask({*client_, parts.now, &sent}, clock, clock_);
  parts.Send(*client_, std::move(sent));
}

void WorkerSteps::StepOverServers(const WorkerParts& parts) {
  if (pulls_.parameters() == nullptr) {
    if (CanBeginByTable(parts)) return BeginComputing(parts, nullptr);
    parts.Enter(State::kPulling);
    // One that runs ahead is still on its way.
    if (!pulls_.is_open()) AskForParameters(parts, clock_);
    return;
  }
  // What comes next depends on the clock.
  if (SkipToTheOthers(parts) || clock_ == EndOf(parts.view().proto()))
    return parts.Ask(DecideNext{});
  if (!step_examples_.HasForStep()) return GoOnWithoutExamples(parts);
  BeginComputing(parts, pulls_.Take());
}

bool WorkerSteps::CanBeginByTable(const WorkerParts& parts) const {
  const wire::View& view = parts.view().proto();
  return options_.step_by_table && pulls_.is_open() &&
         client_->HasBrought(pulls_.id(), TableId{0}) &&
         clock_ != EndOf(view) &&
         // These look at all parameters before the step.
         !RuleAt(view, clock_).skips_ahead() &&
         !(evaluations_.IsDue(clock_, EndOf(view)) && parts.IsChief()) &&
         step_examples_.HasForStep();
}

void WorkerSteps::BeginComputing(const WorkerParts& parts,
                                 PulledParameters parameters) {
  TellLaterClock(parts);
  EvaluateIfDue(parts, parameters);
  if (!place_.has_begun()) SayWhereItGoesOnAt(parts, clock_);
  parts.Enter(State::kComputing);
  parts.Act(worker_action::Compute{
      .clock = clock_,
      .parameters = parameters,
      .examples = step_examples_.examples(),
      .acknowledged = client_->unacknowledged_bytes() == 0
                          ? client_->acknowledged_at()
                          : absl::InfinitePast()});
  if (parameters != nullptr) {
    tables_.BeginWith(*parameters);
    step_examples_.OnParameters(pulls_.HasOwn(clock_));
    return PullAhead(parts);
  }
  ++parts.counts.begun_by_table;
  tables_.BeginWithout(parts.view());
  for (const TableId table : tables_.Missing()) {
    std::optional<TableValues> values = client_->BroughtBy(pulls_.id(), table);
    if (values.has_value()) TakeTable(parts, *std::move(values));
  }
}

void WorkerSteps::TakeTable(const WorkerParts& parts, TableValues values) {
  tables_.Take(values);
  parts.effects.tables.push_back(std::move(values));
}

bool WorkerSteps::SkipToTheOthers(const WorkerParts& parts) {
  if (evaluations_.has_skipped() ||
      !RuleAt(parts.view().proto(), clock_).skips_ahead()) {
    return false;
  }
  const auto [smallest, largest] = pulls_.parameters()->ShardClocks();
  if (largest <= clock_) return false;
  ++parts.counts.skips;
  parts.counts.uneven_skips += smallest < largest;
  parts.counts.skipped += largest - clock_;
  // What shards that lag behind answered is older than that clock allows.
  if (smallest < largest) pulls_.Drop();
  SkipTo(parts, largest);
  return true;
}

void WorkerSteps::SkipTo(const WorkerParts& parts, Clock clock) {
  ClientCore::Effects sent;
  client_->SkipTo(clock, parts.now, &sent);
  evaluations_.OnSkip(clock_);
  clock_ = clock;
  parts.Send(*client_, std::move(sent));
  AskStateIfFree(parts);
  // It may wait for examples that there are none of before that clock.
  if (parts.state == State::kAwaitingExamples &&
      client_->unacknowledged_bytes() == 0) {
    AskForExamples(parts);
  }
  SayWhereItGoesOnAt(parts, clock_);
}

bool WorkerSteps::NextIsOverServers(const WorkerParts& parts) {
  const wire::View& view = parts.view().proto();
  const Clock next = clock_ + 1;
  if (next >= EndOf(view)) return false;
  // Workers may have something to do where a phase begins.
  if (PhaseAt(view, next).from() == next) return false;
  PhaseFollower::Decision decision = follower_->Next(parts.view(), next);
  Notify(parts, std::move(decision.calls));
  return decision.what == PhaseFollower::Do::kStep &&
         !WorkersHaveModel(decision.step);
}

void WorkerSteps::PullAhead(const WorkerParts& parts) {
  const View& view = parts.view();
  const Clock next = clock_ + 1;
  if (!options_.pull_ahead || next >= EndOf(view.proto())) return;
  if (pulls_.asks_state() || StepPulls::HasGivenTurn(view, next)) return;
  if (!NextIsOverServers(parts) || !StepPulls::MayMissLastStep(view, next))
    return;
  ++parts.counts.pulls_ahead;
  AskForParameters(parts, next);
}

void WorkerSteps::PullBehindPushes(const WorkerParts& parts) {
  if (!client_->BetweenClocks() || !pulls_.IsFree() ||
      !NextIsOverServers(parts)) {
    return;
  }
  const Clock next = clock_ + 1;
  if (!StepPulls::MayFollowPushes(parts.view(), next)) return;
  ++parts.counts.pulls_behind;
  pulls_.AskBehindPushes(*client_, next);
}

void WorkerSteps::AskState(const WorkerParts& parts, StateParts what) {
  SL_CHECK(client_.has_value() && !pulls_.asks_state(),
           "the state is asked for once, by a worker that has joined");
  if (IsOver(parts.state)) return;
  pulls_.WantState(what);
  // A pull behind the pushes of this very step is answered when the program has
  // done the rest of the step, which waits for the state.
  ClientCore::Effects sent;
  if (parts.state == State::kComputing &&
      pulls_.ForgetForState({*client_, parts.now, &sent}, clock_)) {
    ++parts.counts.pulls_forgotten;
    parts.Send(*client_, std::move(sent));
  }
  AskStateIfFree(parts);
}

void WorkerSteps::AskStateIfFree(const WorkerParts& parts) {
  ClientCore::Effects sent;
  if (pulls_.AskStateIfFree({*client_, parts.now, &sent}, parts.view(), clock_))
    parts.Send(*client_, std::move(sent));
}

absl::Status WorkerSteps::OnGradient(const WorkerParts& parts, TableId table,
                                     const CodedGradient& gradient,
                                     const StepOptions& options) {
  if (parts.state != State::kComputing) return absl::OkStatus();
  SL_CHECK(tables_.HasCome(table),
           "a gradient of a table whose parameters have not come");
  PullBehindPushes(parts);
  ClientCore::Effects sent;
  SL_RETURN_IF_ERROR(client_->Push(clock_, table, gradient, options,
                                   tables_.versions(), parts.now, &sent));
  parts.patience.CameFurther(parts.now);
  parts.Send(*client_, std::move(sent));
  return absl::OkStatus();
}

absl::Status WorkerSteps::OnSkippedTable(const WorkerParts& parts,
                                         TableId table) {
  if (parts.state != State::kComputing) return absl::OkStatus();
  PullBehindPushes(parts);
  ClientCore::Effects sent;
  SL_RETURN_IF_ERROR(client_->SkipTable(clock_, table, parts.now, &sent));
  parts.patience.CameFurther(parts.now);
  parts.Send(*client_, std::move(sent));
  return absl::OkStatus();
}

void WorkerSteps::OnComputed(const WorkerParts& parts, double loss) {
  if (parts.state != State::kComputing) return;
  SL_CHECK(!tables_.is_missing(), "a step without all of its parameters");
  StepDone(parts, loss);
}

// ---- Examples, with elastic sampling ----------------------------------------

void WorkerSteps::AskForExamples(const WorkerParts& parts) {
  std::optional<wire::Call> call =
      step_examples_.Ask({.clock = clock_,
                          .end = EndOf(parts.view().proto()),
                          .is_done_together = IsDoneTogether(step_),
                          .all_arrived = client_->unacknowledged_bytes() == 0});
  if (call.has_value()) step_examples_.OnAsked(parts.Call(*std::move(call)));
}

void WorkerSteps::WaitForExamples(const WorkerParts& parts) {
  // A newer view is no progress of whoever it waits for.
  if (parts.state != State::kAwaitingExamples)
    parts.Enter(State::kAwaitingExamples);
  AskForExamples(parts);
}

void WorkerSteps::OnGranted(const WorkerParts& parts,
                            const wire::CallReply& reply) {
  const absl::Status answered = step_examples_.OnAnswer(reply);
  if (IsOver(parts.state)) return;
  if (!answered.ok()) return parts.Ask(CannotGoOn{.why = answered});
  if (parts.state == State::kAwaitingExamples) return parts.Ask(DecideNext{});
  if (parts.state == State::kPulling && CanBeginByTable(parts))
    BeginComputing(parts, nullptr);
}

void WorkerSteps::TellLaterClock(const WorkerParts& parts) {
  std::optional<wire::Call> call = step_examples_.TellClock(clock_);
  if (call.has_value()) parts.Notify(*std::move(call));
}

void WorkerSteps::GoOnWithoutExamples(const WorkerParts& parts) {
  const std::optional<Clock> wished = step_examples_.TakeSkip(clock_);
  if (!wished.has_value()) return WaitForExamples(parts);
  pulls_.Drop();
  const Clock to =
      std::min(*wished, follower_->SkipLimit(parts.view(), clock_));
  if (to > clock_) {
    parts.counts.left_out += to - clock_;
    SkipTo(parts, to);
  }
  parts.Ask(DecideNext{});
}

// ---- By all-reduce ----------------------------------------------------------

void WorkerSteps::StepByAllReduce(const WorkerParts& parts) {
  const bool again = group_.HasComputed(clock_);
  const bool empty = !again && !step_examples_.HasForStep();
  if (empty && !step_examples_.HasSkip(clock_)) return WaitForExamples(parts);
  TellLaterClock(parts);
  EvaluateIfDue(parts, nullptr);
  if (empty || !place_.has_begun()) SayWhereItGoesOnAt(parts, clock_ + empty);
  step_examples_
      .ForgetSkip();  // Should this step fail, there may be examples then.
  group_.BeginStep();
  parts.Enter(State::kReducing);
  parts.counts.reduced_again += again;
  parts.counts.empty_steps += empty;
  parts.Act(worker_action::Reduce{.clock = clock_,
                                  .again = again,
                                  .examples = step_examples_.examples(),
                                  .empty = empty,
                                  .keeps_model = KeepsModel(parts.view())});
}

bool WorkerSteps::KeepsModel(const View& view) const {
  return clock_ > 0 || WorkersHaveModel(StepAt(view.proto(), clock_ + 1));
}

void WorkerSteps::BeginConnecting(const WorkerParts& parts) {
  worker_action::Connect connect =
      group_.ConnectTo(parts.view(), parts.rank, parts.now);
  change_times_.OnConnecting(parts.now);
  parts.Enter(State::kConnecting);
  parts.Act(std::move(connect));
}

void WorkerSteps::OnConnected(const WorkerParts& parts) {
  if (parts.state != State::kConnecting) return;
  follower_->Connected(group_.group());
  parts.Enter(State::kCatchingUp);
  parts.Act(worker_action::CatchUp{.standing = group_.StandingAt(clock_)});
}

void WorkerSteps::OnCaughtUp(const WorkerParts& parts, Clock clock,
                             bool took_state) {
  if (parts.state != State::kCatchingUp) return;
  if (took_state && group_.HasComputed(clock_) && clock > clock_)
    step_examples_.OnStepWithOthers();
  if (clock_ != clock) {
    parts.Log(absl::StrCat("took the state of clock ", clock,
                           " from another worker"));
  }
  // The model that a worker gets when it joins is evaluated by those who made
  // it.
  if (clock_ < 0) evaluations_.BeginAfter(clock);
  clock_ = clock;
  group_.OnCaughtUp();
  ++parts.counts.connects;
  change_times_.OnConnected(parts.now);
  parts.Ask(DecideNext{});
}

void WorkerSteps::OnReducing(const WorkerParts& parts) {
  // Without examples it asks again if the sum fails: there may be some by then.
  group_.OnComputed(clock_, step_examples_.HasForStep());
  parts.patience.CameFurther(parts.now);
}

void WorkerSteps::OnReduced(const WorkerParts& parts,
                            const worker_action::Reduced& step) {
  if (parts.state != State::kReducing) return;
  if (step.nonfinite) {
    const auto [workers, what] = group_.CulpritsOf(step, clock_);
    if (StopsAtNonfinite()) {
      return parts.Ask(HasDiverged{
          .why = absl::StrCat(what,
                              "; lower the learning rate, look at the data, or "
                              "set train { nonfinite: SKIP }"),
          .workers = workers,
          .clock = clock_});
    }
    parts.Log(absl::StrCat(what, "; the step changes nothing"));
  }
  ++parts.counts.reduced;
  StepDone(parts, step.loss);
}

void WorkerSteps::OnGroupLost(const WorkerParts& parts,
                              const absl::Status& why) {
  if (!IsInGroup(parts.state)) return;
  asked_ = false;
  if (parts.state == State::kConnecting) {
    // A newer view says whom to connect to.
    if (!group_.IsOf(parts.view())) return parts.Ask(DecideNext{});
    if (group_.OnConnectFailed(parts.now, parts.member.lease())) {
      return parts.Ask(
          CannotGoOn{.why = absl::ResourceExhaustedError(absl::StrCat(
                         "worker ", static_cast<int32_t>(parts.rank),
                         " failed ", group_.failed_connects(),
                         " times in a row to connect to the other workers: ",
                         why.message()))});
    }
  }
  TellGroupLost(parts);
  group_.OnLost(clock_, why, parts.now);
  if (!group_.IsOf(parts.view())) TellGroupLost(parts);
  ++parts.counts.regroups;
  parts.Notify(follower_->ConnectionLost(group_.group()));
  parts.Ask(DecideNext{});
}

void WorkerSteps::TellGroupLost(const WorkerParts& parts) {
  std::optional<std::string> loss = group_.TakeLoss();
  if (loss.has_value()) parts.effects.warnings.push_back(*std::move(loss));
}

// ---- Between servers and all-reduce -----------------------------------------

void WorkerSteps::OnStateTaken(const WorkerParts& parts,
                               const worker_action::Moved& moved) {
  if (parts.state != State::kTakingState) return;
  ++parts.counts.states_taken;
  group_.ForgetComputed();
  follower_->TookState();
  change_times_.OnTaken(moved, parts.now);
  parts.Ask(DecideNext{});
}

void WorkerSteps::ReadShare(const WorkerParts& parts) {
  std::vector<ShardId> share = follower_->Share(parts.view());
  const bool asked = pulls_.is_open();
  if (share.empty() && asked) return;
  parts.counts.shares_again += asked;
  parts.Enter(State::kReadingState);
  parts.Act(worker_action::ReadState{.view = parts.member.view(),
                                     .shards = std::move(share)});
}

void WorkerSteps::OnStateRead(const WorkerParts& parts,
                              std::vector<ClientCore::InstalledShard> shards,
                              const worker_action::Moved& moved) {
  if (parts.state != State::kReadingState) return;
  change_times_.OnRead(moved);
  parts.Enter(State::kGiving);
  ClientCore::Effects sent;
  client_->Install(clock_, std::move(shards), parts.now, &sent);
  parts.Send(*client_, std::move(sent));
  // It may have been answered while the last shards were read.
  if (pulls_.parameters() != nullptr) return GoOnAfterGiving(parts);
  if (!pulls_.is_open()) AskForParameters(parts, clock_);
  ReadShare(parts);  // A view may have come meanwhile.
}

void WorkerSteps::GoOnAfterGiving(const WorkerParts& parts) {
  follower_->GaveState();
  change_times_.OnGiven(parts.now);
  parts.Ask(DecideNext{});
}

}  // namespace slackline
