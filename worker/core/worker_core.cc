#include "worker/core/worker_core.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/membership/end_status.h"
#include "common/status.h"
#include "common/sync/mode.h"
#include "common/sync/phases.h"
#include "common/view/initializer.h"

namespace slackline {
namespace {

std::string Milliseconds(absl::Duration time) {
  return absl::StrCat(absl::ToInt64Milliseconds(time), " ms");
}

}  // namespace

WorkerCore::WorkerCore(const Options& options)
    : options_(options),
      rank_(Rank{options.member.join.index()}),
      member_(options.member),
      leases_(options.member.join.has_elastic()),
      evaluations_(options.evaluate_every),
      patience_(options.wait_timeout),
      conclusion_({.rank = Rank{options.member.join.index()},
                   .save_timeout = options.save_timeout,
                   .save_retry = options.save_retry}) {
  stats_.set_rank(options.member.join.index());
}

void WorkerCore::Start(absl::Time now, Effects* effects) {
  patience_.Start(now);
  MemberCore::Effects member;
  member_.Start(now, &member);
  Perform(&member, now, effects);
}

void WorkerCore::Enter(State state, absl::Time now) {
  state_ = state;
  patience_.CameFurther(now);
}

// ---- Messages and time ----------------------------------------------------

void WorkerCore::OnCoordinatorMessage(const Message& message, absl::Time now,
                                      Effects* effects) {
  if (ended()) return;
  // It may be answered with a heartbeat at once; and while many views come, no
  // other heartbeat is ever due.
  NoticeOthers(now);
  member_.SetStats(Stats(now));
  MemberCore::Effects member;
  member_.OnMessage(message, now, &member);
  Perform(&member, now, effects);
}

void WorkerCore::OnShardMessage(Owner from, const Message& message,
                                absl::Time now, Effects* effects) {
  if (ended() || !client_.has_value()) return;
  ClientCore::Effects client;
  client_->OnMessage(from, message, now, &client);
  Perform(&client, now, effects);
}

void WorkerCore::Wake(absl::Time now) {
  const absl::Duration missed = patience_.Wake(now);
  if (missed == absl::ZeroDuration()) return;
  departure_.OnMissed(missed);
  conclusion_.OnMissed(missed);
}

void WorkerCore::NoticeOthers(absl::Time now) {
  if (!client_.has_value() || !WaitsForOthers()) return;
  patience_.SawOthers(client_->WaitingFor(now), now);
}

void WorkerCore::OnTick(absl::Time now, Effects* effects) {
  if (ended()) return;
  Wake(now);
  SayWhereItGoesOnIfDue(now, effects);  // A collective was given up.
  if (now >= member_.NextWakeup()) {
    NoticeOthers(now);
    member_.SetStats(Stats(now));
    MemberCore::Effects member;
    member_.OnTick(now, &member);
    Perform(&member, now, effects);
  }
  if (ended()) return;
  if (client_.has_value() && now >= client_->NextWakeup()) {
    ClientCore::Effects client;
    client_->OnTick(now, &client);
    Perform(&client, now, effects);
  }
  if (ended()) return;
  if (state_ == State::kLeaving) {
    if (departure_.GivesUpLeaving(now)) End(ending_);
    return;
  }
  if (now >= group_.tell_at()) TellGroupLost(effects);
  if (departure_.GivesUpJoining(now)) {
    return Fail(absl::CancelledError(
                    absl::StrCat(departure_.suspend_reason(),
                                 "; it was to ask for a checkpoint, and could "
                                 "not join again within ",
                                 absl::FormatDuration(kSuspendJoinMax))),
                now, effects);
  }
  if (departure_.VerdictIsOverdue(now)) {
    return EndGivenUp(
        "the servers gave this worker up, and the coordinator does not say "
        "why: its lease ran out although it runs",
        effects);
  }
  if (state_ == State::kSaving && conclusion_.SavesAgain(now)) {
    Enter(State::kConcluding, now);
    effects->actions.push_back(Save{});
    return;
  }
  if (WaitsForOthers() && now >= patience_.Deadline() && client_.has_value()) {
    // Whoever it waits for may have come nearer.
    patience_.CameNearer(client_->WaitingFor(now).since_progress, now);
  }
  if (WaitsForOthers() && now >= patience_.Deadline()) {
    return Fail(
        absl::DeadlineExceededError(absl::StrCat(
            "waited ", Milliseconds(options_.wait_timeout), " for ",
            WaitingText(now),
            "; look at the log of whoever is waited for, or raise limits "
            "{ wait_timeout_ms: ... }")),
        now, effects);
  }
  SayForWhomItWaits(now, effects);
}

void WorkerCore::SayForWhomItWaits(absl::Time now, Effects* effects) {
  if (!patience_.IsToTell(now, member_.lease())) return;
  std::optional<std::string> sentence =
      patience_.Sentence(Progress(now), now, member_.lease());
  if (sentence.has_value()) effects->log.push_back(*std::move(sentence));
}

void WorkerCore::OnLinks(const wire::LinksTried& tried, absl::Time now,
                         Effects* effects) {
  if (ended()) return;
  member_.SetStats(Stats(now));
  MemberCore::Effects member;
  member_.OnLinks(tried, now, &member);
  Perform(&member, now, effects);
}

void WorkerCore::AnswerInspection(wire::Inspected inspected, Payload frame,
                                  absl::Time now, Effects* effects) {
  MemberCore::Effects member;
  unheeded_.insert(member_.AnswerInspection(std::move(inspected),
                                            std::move(frame), now, &member));
  for (Message& message : member.sends)
    effects->to_coordinator.push_back(std::move(message));
}

std::string WorkerCore::WhyRemoved(absl::Time now) const {
  return absl::StrCat("the coordinator gave this worker up: ",
                      member_.WhyFenced(now));
}

void WorkerCore::EndGivenUp(const std::string& why, Effects* effects) {
  // The thread that trains may not come back to hear of it.
  effects->warnings.push_back(why);
  End(absl::AbortedError(why));
}

absl::Time WorkerCore::NextWakeup() const {
  if (ended()) return absl::InfiniteFuture();
  absl::Time next = std::min({member_.NextWakeup(),
                              departure_.NextWakeup(state_ == State::kLeaving),
                              group_.tell_at(), patience_.NextWake()});
  if (client_.has_value()) next = std::min(next, client_->NextWakeup());
  if (state_ == State::kSaving)
    next = std::min(next, conclusion_.save_again_at());
  if (WaitsForOthers()) next = std::min(next, patience_.Deadline());
  return next;
}

void WorkerCore::Perform(MemberCore::Effects* member, absl::Time now,
                         Effects* effects) {
  if (member->look_at.has_value()) effects->look_at = member->look_at;
  if (member->try_links.has_value())
    effects->try_links = std::move(member->try_links);
  std::move(member->inspections.begin(), member->inspections.end(),
            std::back_inserter(effects->inspections));
  // Handling a view may make a heartbeat or a call due.
  for (Message& message : member->sends)
    effects->to_coordinator.push_back(std::move(message));
  std::move(member->log.begin(), member->log.end(),
            std::back_inserter(effects->log));
  if (member->joined) {
    patience_.CameFurther(now);
    if (const std::string reason = departure_.OnJoined(); !reason.empty()) {
      Suspend(reason, now, effects);
    }
  }
  for (MemberCore::CallResult& answer : member->answers) {
    if (leases_.Awaits(answer.call_id)) {
      OnLeased(answer, now, effects);
    } else {
      OnAnswer(std::move(answer), now, effects);
    }
  }
  if (ended()) return;
  if (member->view != nullptr) OnView(member->view, now, effects);
  if (ended()) return;
  if (member->fenced) {
    if (state_ == State::kLeaving) return End(ending_);
    return EndGivenUp(WhyRemoved(now), effects);
  }
  if (!member->failure.ok())
    End(state_ == State::kLeaving ? ending_ : member->failure);
}

void WorkerCore::Perform(ClientCore::Effects* client, absl::Time now,
                         Effects* effects) {
  for (ClientCore::Send& send : client->sends)
    effects->to_shards.push_back(std::move(send));
  if (state_ == State::kLeaving) return;
  if (!client->failure.ok()) return Fail(client->failure, now, effects);
  if (client->fenced && departure_.OnFenced(now, member_.lease())) {
    // A shard may know that the job is over, or that our lease ran out, before
    // we do. The coordinator knows which.
    MemberCore::Effects member;
    member_.SetStats(Stats(now));
    member_.SendHeartbeat(now, &member);
    Perform(&member, now, effects);
    if (ended()) return;
  }
  patience_.SawBytes(client_->bytes_pulled() + client_->unacknowledged_bytes(),
                     !client->pulled.empty(), now);
  for (const ClientCore::Brought& brought : client->brought) {
    if (brought.pull_id != pulls_.id() || !tables_.is_missing()) continue;
    // What has completed its pull comes with all of it.
    std::optional<ClientCore::TableValues> values =
        client_->BroughtBy(pulls_.id(), brought.table);
    if (values.has_value()) TakeTable(*std::move(values), effects);
  }
  for (ClientCore::PullResult& result : client->pulled) {
    if (!pulls_.TakesState(result)) {
      OnPulled(std::move(result), now, effects);
      continue;
    }
    effects->state =
        std::make_shared<const ClientCore::PullResult>(std::move(result));
    // Which has waited for this.
    if (state_ == State::kComputing && !pulls_.is_open() &&
        pulls_.parameters() == nullptr)
      PullAhead(now, effects);
  }
  if (Over()) return;
  if (state_ == State::kPulling && CanBeginByTable())
    BeginComputing(nullptr, now, effects);
  AskStateIfFree(now, effects);
  ActWhenAcknowledged(now, effects);
}

void WorkerCore::ActWhenAcknowledged(absl::Time now, Effects* effects) {
  if (client_->unacknowledged_bytes() != 0) return;
  if (state_ == State::kLeasing) return AskForExamples(now, effects);
  if (state_ == State::kDraining) return Leave(now, effects);
  if (state_ != State::kPushed) return;
  Enter(State::kAskingState, now);
  ClientCore::Effects client;
  pulls_.AskToTakeState({*client_, now, &client}, clock_);
  Perform(&client, now, effects);
}

void WorkerCore::OnAnswer(MemberCore::CallResult answer, absl::Time now,
                          Effects* effects) {
  if (place_.OnCallOver(answer.call_id)) SayWhereItGoesOnIfDue(now, effects);
  if (departure_.OnAnswer(answer.call_id)) {
    if (state_ == State::kLeaving) End(ending_);
    return;
  }
  if (unheeded_.erase(answer.call_id) > 0) {
    if (answer.reply.code() != wire::OK) {
      effects->log.push_back(absl::StrCat("the coordinator refused a notice: ",
                                          answer.reply.error()));
    }
    return;
  }
  effects->answers.push_back(std::move(answer));
}

// ---- Views ----------------------------------------------------------------

void WorkerCore::OnView(const std::shared_ptr<const View>& view, absl::Time now,
                        Effects* effects) {
  const wire::View& proto = view->proto();
  effects->view = view;
  if (proto.state() == wire::FINISHED || proto.state() == wire::FAILED) {
    MemberCore::Effects last;  // The coordinator waits for this.
    member_.SetStats(Stats(now));
    member_.SendHeartbeat(now, &last);
    for (Message& message : last.sends)
      effects->to_coordinator.push_back(std::move(message));
    return End(
        proto.state() == wire::FAILED
            ? EndStatus(absl::StatusCode::kFailedPrecondition, proto.end())
            : absl::OutOfRangeError(absl::StrCat("the job has finished: ",
                                                 proto.end().reason())));
  }
  if (proto.state() != wire::RUNNING || Over()) return;
  patience_.HeardNews(now);
  if (view->FindWorker(rank_, member_.incarnation()) == nullptr) {
    return EndGivenUp(WhyRemoved(now), effects);
  }
  if (!client_.has_value()) return Begin(now, effects);
  tables_.OnView(*view);
  ClientCore::Effects client;
  client_->OnView(view, now, &client);
  Perform(&client, now, effects);
  if (Over()) return;
  if (!group_.IsOf(*view)) TellGroupLost(effects);
  AbortGroupIfOver(effects);
  // Who is held up in a step tells where it will stop: the others may wait for
  // that, and it for them.
  if (state_ < State::kDone) Notify(follower_->Promise(*view), now, effects);
  switch (state_) {
    case State::kWaiting:
      if (view->number() > waited_view_) Decide(now, effects);
      return;
    case State::kLeasing:  // The end, or by all-reduce another group.
      return Decide(now, effects);
    case State::kGiving:  // Who was to install the rest may have died.
      return ReadShare(now, effects);
    case State::kDone:
      KeepProgramIfDue(effects);
      return BeChief(now, effects);
    default:
      // One that is at the end decides nothing any more.
      if (state_ >= State::kDraining) KeepProgramIfDue(effects);
      return;
  }
}

void WorkerCore::Begin(absl::Time now, Effects* effects) {
  const View& view = *member_.view();
  ClientCore::Options client = options_.client;
  client.rank = rank_;
  client.incarnation = member_.incarnation();
  client.run = member_.run();
  client_.emplace(client, member_.view());
  cut_duties_.Begin(view);
  const bool founder = view.FindWorker(rank_)->founder();
  // A job that goes on has its state on the servers: all begin over them.
  const bool by_all_reduce = founder
                                 ? !BeginsWithCheckpoint(view.proto()) &&
                                       !RuleAt(view.proto(), 0).over_servers()
                                 : JoinsByAllReduce(view);
  follower_.emplace(PhaseFollower::Options{.rank = rank_}, by_all_reduce);
  effects->log.push_back(
      absl::StrCat("the job runs: ", view.workers().size(), " workers, ",
                   options_.member.join.has_elastic() ? "about " : "",
                   view.proto().steps_total(), " steps"));
  if (by_all_reduce) {
    clock_ = founder ? 0 : -1;
    group_.BeginWith(founder && BeginsWithWorker(view.proto()));
    counts_.group_joins += !founder;
    Enter(State::kInitializing, now);
    effects->actions.push_back(Initialize{});
    return;
  }
  Enter(State::kJoinPull, now);
  ClientCore::Effects joining;
  pulls_.Join({*client_, now, &joining});
  Perform(&joining, now, effects);
}

void WorkerCore::OnAsked(absl::Time now, Effects* effects) {
  asked_ = true;
  if (state_ == State::kTrained) Leave(now, effects);
}

void WorkerCore::OnInitialized(absl::Time now, Effects* effects) {
  if (state_ == State::kInitializing) Decide(now, effects);
}

// ---- What next ------------------------------------------------------------

void WorkerCore::Notify(std::vector<wire::Call> calls, absl::Time now,
                        Effects* effects) {
  for (wire::Call& call : calls) {
    if (call.has_entered()) {
      wire::Entered& entered = *call.mutable_entered();
      change_times_.Describe(now, &entered);
      effects->log.push_back(absl::StrFormat(
          "%s from clock %d on, after %.1f ms",
          ModeText(PhaseAt(view()->proto(), std::max<Clock>(clock_, 0)).mode()),
          entered.from(), static_cast<double>(entered.pause_micros()) / 1000));
    }
    MemberCore::Effects member;
    unheeded_.insert(member_.Call(std::move(call), Payload(), now, &member));
    Perform(&member, now, effects);
  }
}

void WorkerCore::SayWhereItGoesOn(Clock step, absl::Time now,
                                  Effects* effects) {
  place_.GoOnAt(step);
  SayWhereItGoesOnIfDue(now, effects);
}

void WorkerCore::SayWhereItGoesOnIfDue(absl::Time now, Effects* effects) {
  if (Over()) return;
  std::optional<wire::Call> call = place_.ToTell();
  if (call.has_value()) Notify({*std::move(call)}, now, effects);
}

void WorkerCore::KeepStateIfDue(Effects* effects) {
  if (!by_all_reduce() || !IsChief()) return;
  const std::optional<KeepState> keep =
      cut_duties_.KeepStateAt(*view(), clock_);
  if (!keep.has_value()) return;
  ++counts_.states_kept;
  effects->actions.push_back(*keep);
}

void WorkerCore::KeepProgramIfDue(Effects* effects) {
  if (!options_.member.join.keeps_state()) return;
  const std::optional<KeepProgram> keep =
      cut_duties_.KeepProgramAt(*view(), member_.incarnation(), clock_);
  if (!keep.has_value()) return;
  ++counts_.programs_kept;
  effects->actions.push_back(*keep);
}

void WorkerCore::OnCutPart(const wire::CutPart& part, absl::Time now,
                           Effects* effects) {
  if (Over()) return;
  wire::Call call;
  *call.mutable_cut_part() = part;
  Notify({std::move(call)}, now, effects);
}

void WorkerCore::Decide(absl::Time now, Effects* effects) {
  using Do = PhaseFollower::Do;
  KeepStateIfDue(effects);
  KeepProgramIfDue(effects);
  // A skip to the others' clock asks again.
  PhaseFollower::Decision decision = follower_->Next(*view(), clock_);
  const bool steps = decision.what == Do::kStepOverServers ||
                     decision.what == Do::kStepByAllReduce;
  if (!steps) change_times_.Begin(now);
  Notify(std::move(decision.calls), now, effects);
  if (Over()) return;
  if (steps) change_times_.End();
  Act(decision, now, effects);
}

void WorkerCore::Act(const PhaseFollower::Decision& decision, absl::Time now,
                     Effects* effects) {
  using Do = PhaseFollower::Do;
  switch (decision.what) {
    case Do::kStepOverServers:
      return StepOverServers(now, effects);
    case Do::kStepByAllReduce:
      return StepByAllReduce(now, effects);
    case Do::kWait:
      waiting_for_ = decision.waiting_for;
      waited_view_ = view()->number();
      return Enter(State::kWaiting, now);
    case Do::kTakeState:
      // Nothing was asked for ahead: the phases of the next clock were known.
      pulls_.Drop();
      change_times_.OnMoving(now);
      Enter(State::kPushed, now);
      return ActWhenAcknowledged(now, effects);
    case Do::kConnect:
      return BeginConnecting(now, effects);
    case Do::kGiveState:
      effects->actions.push_back(LeaveGroup{});
      ++counts_.states_given;
      change_times_.OnMoving(now);
      Enter(State::kGiving, now);
      return ReadShare(now, effects);
    case Do::kFinish:
      if (follower_->by_all_reduce()) {
        effects->actions.push_back(LeaveGroup{});
        return Leave(now, effects);
      }
      Enter(State::kDraining, now);
      return ActWhenAcknowledged(now, effects);
  }
}

// ---- Over servers ---------------------------------------------------------

void WorkerCore::AskForParameters(Clock clock, absl::Time now,
                                  Effects* effects) {
  ClientCore::Effects client;
  pulls_.Ask({*client_, now, &client}, clock, clock_);
  Perform(&client, now, effects);
}

void WorkerCore::OnPulled(ClientCore::PullResult result, absl::Time now,
                          Effects* effects) {
  SL_CHECK(result.pull_id == pulls_.id(),
           "an answer to a pull that was not asked for");
  pulls_.Close();
  Parameters pulled =
      std::make_shared<const ClientCore::PullResult>(std::move(result));
  effects->pulled.push_back(pulled);
  switch (state_) {
    case State::kJoinPull: {
      ClientCore::Effects client;
      clock_ = client_->StartAt(*pulled, now, &client);
      const auto [smallest, largest] = pulled->ShardClocks();
      const wire::WorkerMember* const self = view()->FindWorker(rank_);
      const bool founder = self != nullptr && self->founder();
      counts_.late_starts += clock_ > 0 && !founder;
      counts_.resumed_starts += clock_ > 0 && founder;
      counts_.uneven_starts += smallest < largest;
      // What the join returned may be older than a later start clock.
      if (clock_ == 0) pulls_.Keep(std::move(pulled));
      if (clock_ > 0) {
        effects->log.push_back(absl::StrCat(founder
                                                ? "goes on at clock "
                                                : "joining the running job at "
                                                  "clock ",
                                            clock_));
      }
      // The job before has evaluated that model, as no job does that of clock
      // 0.
      if (founder) evaluations_.BeginAfter(clock_);
      Perform(&client, now, effects);
      if (Over()) return;
      // Others may begin at earlier steps, and wait for it at a collective
      // there, while it waits for their pushes.
      if (founder && clock_ > 0) SayWhereItGoesOn(clock_, now, effects);
      return Decide(now, effects);
    }
    case State::kAskingState:
      Enter(State::kTakingState, now);
      effects->actions.push_back(TakeState{.state = std::move(pulled)});
      return;
    case State::kFinalPull:
      Enter(State::kConcluding, now);
      effects->actions.push_back(Conclude{.parameters = std::move(pulled)});
      return;
    default:
      break;
  }
  if (tables_.is_missing()) {
    for (const TableId table : tables_.Missing())
      TakeTable(pulled->Of(table), effects);
    tables_.Complete();
    leases_.OnParameters(pulls_.HasOwn(clock_));
    PullAhead(now, effects);
    return;
  }
  pulls_.Keep(std::move(pulled));
  if (state_ == State::kPulling) StepOverServers(now, effects);
  if (state_ == State::kGiving) GoOnAfterGiving(now, effects);
}

bool WorkerCore::SkipToTheOthers(absl::Time now, Effects* effects) {
  if (evaluations_.has_skipped() ||
      !RuleAt(view()->proto(), clock_).skips_ahead()) {
    return false;
  }
  const auto [smallest, largest] = pulls_.parameters()->ShardClocks();
  if (largest <= clock_) return false;
  ++counts_.skips;
  counts_.uneven_skips += smallest < largest;
  counts_.skipped += largest - clock_;
  // What shards that lag behind answered is older than that clock allows.
  if (smallest < largest) pulls_.Drop();
  SkipTo(largest, now, effects);
  return true;
}

void WorkerCore::SkipTo(Clock clock, absl::Time now, Effects* effects) {
  ClientCore::Effects client;
  client_->SkipTo(clock, now, &client);
  evaluations_.OnSkip(clock_);
  clock_ = clock;
  Perform(&client, now, effects);
  if (!Over()) SayWhereItGoesOn(clock_, now, effects);
}

// ---- Examples, with elastic sampling ----------------------------------------

void WorkerCore::AskForExamples(absl::Time now, Effects* effects) {
  std::optional<wire::Call> call =
      leases_.Ask({.clock = clock_,
                   .end = EndOf(view()->proto()),
                   .by_all_reduce = by_all_reduce(),
                   .all_arrived = !by_all_reduce() &&
                                  client_->unacknowledged_bytes() == 0});
  if (!call.has_value()) return;
  MemberCore::Effects member;
  leases_.OnAsked(member_.Call(*std::move(call), Payload(), now, &member));
  Perform(&member, now, effects);
}

void WorkerCore::OnLeased(const MemberCore::CallResult& answer, absl::Time now,
                          Effects* effects) {
  const absl::Status leased = leases_.OnAnswer(answer.reply);
  if (Over()) return;
  if (!leased.ok()) return Fail(leased, now, effects);
  if (state_ == State::kLeasing) return Decide(now, effects);
  if (state_ == State::kPulling && CanBeginByTable())
    BeginComputing(nullptr, now, effects);
}

void WorkerCore::WaitForExamples(absl::Time now, Effects* effects) {
  // A newer view is no progress of whoever it waits for.
  if (state_ != State::kLeasing) Enter(State::kLeasing, now);
  AskForExamples(now, effects);
}

void WorkerCore::TellLaterClock(absl::Time now, Effects* effects) {
  std::optional<wire::Call> call = leases_.TellClock(clock_);
  if (call.has_value()) Notify({*std::move(call)}, now, effects);
}

bool WorkerCore::HasExamples(absl::Time now, Effects* effects) {
  if (leases_.HasForStep()) return true;
  const std::optional<Clock> wished = leases_.TakeSkip(clock_);
  if (!wished.has_value()) {
    WaitForExamples(now, effects);
    return false;
  }
  pulls_.Drop();
  if (const Clock to = std::min(*wished, follower_->SkipLimit(*view(), clock_));
      to > clock_) {
    counts_.left_out += to - clock_;
    SkipTo(to, now, effects);
    if (Over()) return false;
  }
  Decide(now, effects);
  return false;
}

// ---- A step over servers ----------------------------------------------------

void WorkerCore::StepOverServers(absl::Time now, Effects* effects) {
  if (pulls_.parameters() == nullptr) {
    if (CanBeginByTable()) return BeginComputing(nullptr, now, effects);
    Enter(State::kPulling, now);
    // One that runs ahead is still on its way.
    if (!pulls_.is_open()) AskForParameters(clock_, now, effects);
    return;
  }
  if (SkipToTheOthers(now, effects)) {
    if (Over()) return;
    return Decide(now, effects);  // What comes next depends on the clock.
  }
  if (clock_ == EndOf(view()->proto())) return Decide(now, effects);
  if (!HasExamples(now, effects)) return;
  BeginComputing(pulls_.Take(), now, effects);
}

bool WorkerCore::CanBeginByTable() const {
  return options_.step_by_table && pulls_.is_open() &&
         client_->HasBrought(pulls_.id(), TableId{0}) &&
         clock_ != EndOf(view()->proto()) &&
         // These look at all parameters before the step.
         !RuleAt(view()->proto(), clock_).skips_ahead() &&
         !(EvaluationIsDue() && IsChief()) && leases_.HasForStep();
}

void WorkerCore::BeginComputing(Parameters parameters, absl::Time now,
                                Effects* effects) {
  TellLaterClock(now, effects);
  if (Over()) return;
  EvaluateIfDue(parameters, effects);
  if (!place_.has_begun()) SayWhereItGoesOn(clock_, now, effects);
  Enter(State::kComputing, now);
  effects->actions.push_back(
      Compute{.clock = clock_,
              .parameters = parameters,
              .examples = leases_.examples(),
              .acknowledged = client_->unacknowledged_bytes() == 0
                                  ? client_->acknowledged_at()
                                  : absl::InfinitePast()});
  if (parameters != nullptr) {
    tables_.BeginWith(*parameters);
    leases_.OnParameters(pulls_.HasOwn(clock_));
    return PullAhead(now, effects);
  }
  ++counts_.begun_by_table;
  tables_.BeginWithout(*view());
  for (int32_t table = 0; table < view()->proto().table_size(); ++table) {
    std::optional<ClientCore::TableValues> values =
        client_->BroughtBy(pulls_.id(), TableId{table});
    if (values.has_value()) TakeTable(*std::move(values), effects);
  }
}

void WorkerCore::TakeTable(ClientCore::TableValues values, Effects* effects) {
  tables_.Take(values);
  effects->tables.push_back(std::move(values));
}

bool WorkerCore::NextIsOverServers(absl::Time now, Effects* effects) {
  const Clock next = clock_ + 1;
  if (next >= EndOf(view()->proto())) return false;
  // Workers may have something to do where a phase begins.
  if (PhaseAt(view()->proto(), next).from() == next) return false;
  PhaseFollower::Decision decision = follower_->Next(*view(), next);
  Notify(std::move(decision.calls), now, effects);
  return !Over() && decision.what == PhaseFollower::Do::kStepOverServers;
}

void WorkerCore::PullAhead(absl::Time now, Effects* effects) {
  const Clock next = clock_ + 1;
  if (!options_.pull_ahead || next >= EndOf(view()->proto())) return;
  if (pulls_.asks_state() || StepPulls::HasGivenTurn(*view(), next)) return;
  if (!NextIsOverServers(now, effects) ||
      !StepPulls::MayMissLastStep(*view(), next)) {
    return;
  }
  ++counts_.pulls_ahead;
  AskForParameters(next, now, effects);
}

void WorkerCore::PullBehindPushes(absl::Time now, Effects* effects) {
  if (!client_->BetweenClocks() || !pulls_.IsFree() ||
      !NextIsOverServers(now, effects)) {
    return;
  }
  const Clock next = clock_ + 1;
  if (!StepPulls::MayFollowPushes(*view(), next)) return;
  ++counts_.pulls_behind;
  pulls_.AskBehindPushes(*client_, next);
}

bool WorkerCore::HasRoom(size_t bytes) const {
  if (!client_.has_value()) return true;
  const size_t waiting = client_->unacknowledged_bytes();
  return waiting == 0 || waiting + bytes <= options_.unacknowledged_bytes_max;
}

void WorkerCore::AskState(absl::Time now, Effects* effects) {
  SL_CHECK(client_.has_value() && !pulls_.asks_state(),
           "the state is asked for once, by a worker that has joined");
  if (Over()) return;
  pulls_.WantState();
  // A pull behind the pushes of this very step is answered when the program has
  // done the rest of the step, which waits for the state.
  ClientCore::Effects client;
  if (state_ == State::kComputing &&
      pulls_.ForgetForState({*client_, now, &client}, clock_)) {
    ++counts_.pulls_forgotten;
    Perform(&client, now, effects);
    if (Over()) return;
  }
  AskStateIfFree(now, effects);
}

void WorkerCore::AskStateIfFree(absl::Time now, Effects* effects) {
  if (Over()) return;
  ClientCore::Effects client;
  if (pulls_.AskStateIfFree({*client_, now, &client}, *view(), clock_))
    Perform(&client, now, effects);
}

void WorkerCore::SetNeed(Need need, absl::Time now) {
  need_ = need;
  patience_.CameFurther(now);
}

absl::Status WorkerCore::OnGradient(TableId table,
                                    const CodedGradient& gradient,
                                    const StepOptions& options, absl::Time now,
                                    Effects* effects) {
  if (state_ != State::kComputing) return absl::OkStatus();
  SL_CHECK(tables_.HasCome(table),
           "a gradient of a table whose parameters have not come");
  PullBehindPushes(now, effects);
  if (Over()) return absl::OkStatus();
  ClientCore::Effects client;
  SL_RETURN_IF_ERROR(client_->Push(clock_, table, gradient, options,
                                   tables_.versions(), now, &client));
  patience_.CameFurther(now);
  Perform(&client, now, effects);
  return absl::OkStatus();
}

absl::Status WorkerCore::OnSkippedTable(TableId table, absl::Time now,
                                        Effects* effects) {
  if (state_ != State::kComputing) return absl::OkStatus();
  PullBehindPushes(now, effects);
  if (Over()) return absl::OkStatus();
  ClientCore::Effects client;
  SL_RETURN_IF_ERROR(client_->SkipTable(clock_, table, now, &client));
  patience_.CameFurther(now);
  Perform(&client, now, effects);
  return absl::OkStatus();
}

void WorkerCore::OnComputed(double loss, absl::Time now, Effects* effects) {
  if (state_ != State::kComputing) return;
  SL_CHECK(!tables_.is_missing(), "a step without all of its parameters");
  StepDone(loss, now, effects);
}

void WorkerCore::StepDone(double loss, absl::Time now, Effects* effects) {
  if (!std::isfinite(loss) && std::exchange(loss_was_finite_, false)) {
    const std::string what =
        absl::StrCat("the loss is ", loss, " at step ", clock_, " of worker ",
                     static_cast<int32_t>(rank_),
                     ": the training has diverged; lower the learning rate");
    // No worker has a use for this model any more.
    if (StopsAtNonfinite()) {
      return StopDiverged(
          absl::StrCat(what, ", or set train { nonfinite: SKIP }"),
          {static_cast<int32_t>(rank_)}, now, effects);
    }
    effects->log.push_back(what);
  }
  loss_was_finite_ = std::isfinite(loss);
  asked_ = false;
  ++clock_;
  ++counts_.steps;
  counts_.ranges += leases_.examples().has_value();
  leases_.OnStep(by_all_reduce());
  evaluations_.OnStep();
  AskForExamples(now, effects);
  if (Over()) return;
  if (by_all_reduce()) EvaluateIfDue(nullptr, effects);
  Decide(now, effects);
}

bool WorkerCore::EvaluationIsDue() const {
  return evaluations_.IsDue(clock_, EndOf(view()->proto()));
}

void WorkerCore::EvaluateIfDue(const Parameters& parameters, Effects* effects) {
  if (!evaluations_.Begin(clock_, EndOf(view()->proto())) || !IsChief()) return;
  effects->actions.push_back(
      Evaluate{.clock = clock_, .parameters = parameters});
}

bool WorkerCore::KeepsModel(double test_loss, double test_accuracy) {
  return evaluations_.KeepsModel(options_.train, test_loss, test_accuracy);
}

// ---- From servers to all-reduce -------------------------------------------

void WorkerCore::OnStateTaken(const Moved& moved, absl::Time now,
                              Effects* effects) {
  if (state_ != State::kTakingState) return;
  ++counts_.states_taken;
  group_.ForgetComputed();
  follower_->TookState();
  change_times_.OnTaken(moved, now);
  EvaluateIfDue(nullptr, effects);
  Decide(now, effects);
}

// ---- By all-reduce --------------------------------------------------------

void WorkerCore::StepByAllReduce(absl::Time now, Effects* effects) {
  const bool again = group_.HasComputed(clock_);
  const bool empty = !again && !leases_.HasForStep();
  if (empty && !leases_.HasSkip(clock_)) return WaitForExamples(now, effects);
  TellLaterClock(now, effects);
  if (Over()) return;
  if (empty || !place_.has_begun())
    SayWhereItGoesOn(clock_ + empty, now, effects);
  leases_
      .ForgetSkip();  // Should this step fail, there may be examples by then.
  group_.BeginStep();
  Enter(State::kReducing, now);
  counts_.reduced_again += again;
  counts_.empty_steps += empty;
  effects->actions.push_back(Reduce{.clock = clock_,
                                    .again = again,
                                    .examples = leases_.examples(),
                                    .empty = empty});
}

void WorkerCore::BeginConnecting(absl::Time now, Effects* effects) {
  Connect connect = group_.ConnectTo(*view(), rank_, now);
  change_times_.OnConnecting(now);
  Enter(State::kConnecting, now);
  effects->actions.push_back(std::move(connect));
}

void WorkerCore::AbortGroupIfOver(Effects* effects) const {
  if (!InGroup() || group_.IsOf(*view())) return;
  effects->abort_group =
      absl::UnavailableError("the group of workers has changed");
}

void WorkerCore::OnConnected(absl::Time now, Effects* effects) {
  if (state_ != State::kConnecting) return;
  follower_->Connected(group_.group());
  Enter(State::kCatchingUp, now);
  effects->actions.push_back(CatchUp{.standing = group_.StandingAt(clock_)});
  AbortGroupIfOver(effects);
}

void WorkerCore::OnCaughtUp(Clock clock, bool took_state, absl::Time now,
                            Effects* effects) {
  if (state_ != State::kCatchingUp) return;
  if (took_state && group_.HasComputed(clock_) && clock > clock_)
    leases_.OnStepWithOthers();
  if (clock_ != clock) {
    effects->log.push_back(absl::StrCat("took the state of clock ", clock,
                                        " from another worker"));
  }
  clock_ = clock;
  group_.OnCaughtUp();
  ++counts_.connects;
  change_times_.OnConnected(now);
  Decide(now, effects);
}

void WorkerCore::OnReducing(absl::Time now) {
  // Without examples it asks again if the sum fails: there may be some by then.
  group_.OnComputed(clock_, leases_.HasForStep());
  patience_.CameFurther(now);
}

void WorkerCore::OnReduced(const Reduced& step, absl::Time now,
                           Effects* effects) {
  if (state_ != State::kReducing) return;
  if (step.nonfinite) {
    const auto [workers, what] = group_.CulpritsOf(step, clock_);
    if (StopsAtNonfinite()) {
      return StopDiverged(
          absl::StrCat(what,
                       "; lower the learning rate, look at the data, or set "
                       "train { nonfinite: SKIP }"),
          workers, now, effects);
    }
    effects->log.push_back(absl::StrCat(what, "; the step changes nothing"));
  }
  ++counts_.reduced;
  StepDone(step.loss, now, effects);
}

void WorkerCore::OnGroupLost(const absl::Status& why, absl::Time now,
                             Effects* effects) {
  if (!InGroup()) return;
  asked_ = false;
  if (state_ == State::kConnecting) {
    // A newer view says whom to connect to.
    if (!group_.IsOf(*view())) return Decide(now, effects);
    if (group_.OnConnectFailed(now, member_.lease())) {
      return Fail(absl::ResourceExhaustedError(absl::StrCat(
                      "worker ", options_.member.join.index(), " failed ",
                      group_.failed_connects(),
                      " times in a row to connect to the other workers: ",
                      why.message())),
                  now, effects);
    }
  }
  TellGroupLost(effects);
  group_.OnLost(clock_, why, now);
  if (!group_.IsOf(*view())) TellGroupLost(effects);
  ++counts_.regroups;
  Notify({follower_->ConnectionLost(group_.group())}, now, effects);
  if (Over()) return;
  Decide(now, effects);
}

void WorkerCore::TellGroupLost(Effects* effects) {
  std::optional<std::string> loss = group_.TakeLoss();
  if (loss.has_value()) effects->warnings.push_back(*std::move(loss));
}

// ---- From all-reduce to servers -------------------------------------------

void WorkerCore::ReadShare(absl::Time now, Effects* effects) {
  std::vector<ShardId> share = follower_->Share(*view());
  const bool asked = pulls_.is_open();
  if (share.empty() && asked) return;
  counts_.shares_again += asked;
  Enter(State::kReadingState, now);
  effects->actions.push_back(
      ReadState{.view = view(), .shards = std::move(share)});
}

void WorkerCore::OnStateRead(std::vector<ClientCore::InstalledShard> shards,
                             const Moved& moved, absl::Time now,
                             Effects* effects) {
  if (state_ != State::kReadingState) return;
  change_times_.OnRead(moved);
  Enter(State::kGiving, now);
  ClientCore::Effects client;
  client_->Install(clock_, std::move(shards), now, &client);
  Perform(&client, now, effects);
  if (Over()) return;
  // It may have been answered while the last shards were read.
  if (pulls_.parameters() != nullptr) return GoOnAfterGiving(now, effects);
  if (!pulls_.is_open()) AskForParameters(clock_, now, effects);
  // A view may have come meanwhile.
  if (state_ == State::kGiving) ReadShare(now, effects);
}

void WorkerCore::GoOnAfterGiving(absl::Time now, Effects* effects) {
  follower_->GaveState();
  change_times_.OnGiven(now);
  Decide(now, effects);
}

// ---- The end --------------------------------------------------------------

bool WorkerCore::IsChief() const {
  return slackline::IsChief(*view(), member_.incarnation());
}

void WorkerCore::Leave(absl::Time now, Effects* effects) {
  member_.Cancel(leases_.Close());  // Nothing is left to be given.
  if (!asked_) {
    // Its program may still want something of the job, which ends when all have
    // left. The coordinator hears at once that the training is over.
    Enter(State::kTrained, now);
    MemberCore::Effects member;
    member_.SetStats(Stats(now));
    member_.SendHeartbeat(now, &member);
    return Perform(&member, now, effects);
  }
  Enter(State::kDone, now);
  effects->log.push_back(absl::StrCat("completed ", clock_, " steps"));
  wire::Call leave;
  leave.mutable_leave();
  Notify({std::move(leave)}, now, effects);
  if (state_ == State::kDone) BeChief(now, effects);
}

void WorkerCore::BeChief(absl::Time now, Effects* effects) {
  if (!Conclusion::IsDue(*view(), member_.incarnation())) return;
  ++counts_.conclusions;
  if (follower_->by_all_reduce()) {
    Enter(State::kConcluding, now);
    effects->actions.push_back(Conclude{});
    return;
  }
  // Every push is acknowledged, so this will be the final model.
  Enter(State::kFinalPull, now);
  ClientCore::Effects client;
  pulls_.AskModel({*client_, now, &client}, clock_);
  Perform(&client, now, effects);
}

void WorkerCore::OnConcluded(const run::Result& result, absl::Time now,
                             Effects* effects) {
  if (state_ != State::kConcluding) return;
  Enter(State::kReported, now);
  wire::Call leave;
  *leave.mutable_leave()->mutable_result() = result;
  Notify({std::move(leave)}, now, effects);
}

void WorkerCore::OnSaveFailed(const absl::Status& why, absl::Time now,
                              Effects* effects) {
  if (state_ != State::kConcluding) return;
  ++counts_.saves_failed;
  std::string log;
  const absl::Status given_up = conclusion_.OnSaveFailed(why, now, &log);
  if (!log.empty()) effects->log.push_back(std::move(log));
  if (!given_up.ok()) return StopJob(given_up, now, effects);
  Enter(State::kSaving, now);
}

void WorkerCore::Suspend(const std::string& reason, absl::Time now,
                         Effects* effects) {
  if (Over()) return;
  if (options_.joins_again && member_.incarnation() == 0) {
    if (!departure_.SuspendWhenJoined(reason, now)) return;
    effects->log.push_back(
        absl::StrCat(reason,
                     ": this worker joins again; once it has, it asks for a "
                     "checkpoint, after which the job ends"));
    return;
  }
  if (!member_.HearsCoordinator(now))
    return Fail(absl::CancelledError(reason), now, effects);
  effects->log.push_back(SuspendingText(reason));
  Notify({SuspendCall(reason)}, now, effects);
}

void WorkerCore::StopJob(const absl::Status& why, absl::Time now,
                         Effects* effects, const std::string& traceback) {
  wire::Call stop;
  stop.mutable_stop()->set_traceback(traceback);
  stop.mutable_stop()->set_reason(std::string(why.message()));
  LeaveWith(std::move(stop), why, now, effects);
}

void WorkerCore::StopDiverged(const std::string& why,
                              const std::vector<int32_t>& workers,
                              absl::Time now, Effects* effects) {
  wire::Call call;
  call.mutable_stop()->set_reason(why);
  wire::Diverged& diverged = *call.mutable_stop()->mutable_diverged();
  diverged.set_clock(clock_);
  for (const int32_t worker : workers) diverged.add_worker(worker);
  LeaveWith(std::move(call), absl::InvalidArgumentError(why), now, effects);
}

void WorkerCore::Fail(const absl::Status& why, absl::Time now, Effects* effects,
                      const std::string& traceback) {
  wire::Call leave;
  leave.mutable_leave()->set_traceback(traceback);
  leave.mutable_leave()->set_failure(std::string(why.message()));
  LeaveWith(std::move(leave), why, now, effects);
}

void WorkerCore::LeaveWith(wire::Call call, const absl::Status& why,
                           absl::Time now, Effects* effects) {
  if (Over()) return;
  if (InGroup()) effects->abort_group = why;
  if (member_.incarnation() == 0) return End(why);
  ending_ = why;
  const bool stops = call.has_stop();
  MemberCore::Effects member;
  // The last heartbeat may be older than the steps since.
  member_.SetStats(Stats(now));
  member_.SendHeartbeat(now, &member);
  Enter(State::kLeaving, now);
  const uint64_t id = member_.Call(std::move(call), Payload(), now, &member);
  if (stops) {  // It hears the job's end.
    departure_.OnStopping(now, member_.lease());
    unheeded_.insert(id);
  } else {
    departure_.OnLeaving(id, now);
  }
  Perform(&member, now, effects);
}

void WorkerCore::End(const absl::Status& why) {
  if (ended()) return;
  ending_ = why;
  state_ = State::kEnded;
}

uint64_t WorkerCore::Call(wire::Call call, Payload value, absl::Time now,
                          Effects* effects) {
  MemberCore::Effects member;
  const bool gathers = call.has_gather();
  const uint64_t id =
      member_.Call(std::move(call), std::move(value), now, &member);
  if (gathers) place_.OnGather(id);
  Perform(&member, now, effects);
  return id;
}

// ---- Where it is ----------------------------------------------------------

bool WorkerCore::WaitsForOthers() const {
  if (need_ == Need::kState) return true;
  switch (state_) {
    case State::kJoinPull:
    case State::kPulling:
    case State::kLeasing:
    case State::kWaiting:
    case State::kPushed:
    case State::kAskingState:
    case State::kGiving:
    case State::kDraining:
    case State::kFinalPull:
    case State::kReported:
      return true;
    case State::kComputing:
      return need_ != Need::kNothing;
    default:
      return false;
  }
}

std::string WorkerCore::WaitingText(absl::Time now) const {
  const auto with_client = [&](const std::string& what) {
    return client_.has_value()
               ? absl::StrCat(what, ": ", client_->WaitingFor(now).text)
               : what;
  };
  if (need_ == Need::kState) return with_client("the optimizer's state");
  switch (state_) {
    case State::kWaiting:
      return waiting_for_;
    case State::kLeasing:
      return "examples: other workers have the last ones";
    case State::kPushed:
    case State::kDraining:
      return with_client("pushes to be acknowledged");
    case State::kComputing:
      return with_client(need_ == Need::kRoom ? "room to push" : "parameters");
    case State::kReported:
      return "the coordinator to end the job";
    case State::kDone:
      return "the other workers to finish";
    default:
      return with_client("parameters");
  }
}

run::WorkerStats WorkerCore::Stats(absl::Time now) const {
  run::WorkerStats stats = stats_;
  stats.set_rank(static_cast<int32_t>(rank_));
  if (client_.has_value()) {
    stats.set_bytes_pushed(client_->bytes_pushed());
    stats.set_bytes_resent(client_->bytes_resent());
    stats.set_bytes_pulled(client_->bytes_pulled());
    stats.set_retries(client_->retries());
    for (const auto& [server, answers] : client_->answers()) {
      run::ServerAnswers& told = *stats.add_answers();
      told.set_server(server);
      told.set_messages(answers.messages);
      told.set_seconds(absl::ToDoubleSeconds(answers.time));
    }
  }
  *stats.mutable_progress() = Progress(now);
  // Of the core, which alone knows a step that was skipped at the end.
  stats.set_clock(stats.progress().clock());
  return stats;
}

run::WorkerProgress WorkerCore::Progress(absl::Time now) const {
  using P = run::WorkerProgress;
  P progress;
  progress.set_clock(std::max<Clock>(clock_, 0));
  progress.set_for_ms(absl::ToInt64Milliseconds(now - patience_.progress_at()));
  const auto is = [&](P::Activity activity, std::string what) {
    progress.set_activity(activity);
    progress.set_what(std::move(what));
  };
  const auto waits = [&] {
    using Kind = ClientCore::Waiting::Kind;
    const ClientCore::Waiting waiting = client_->WaitingFor(now);
    is(waiting.kind == Kind::kWorkers ? P::WAITING_FOR_WORKERS
                                      : P::WAITING_FOR_SERVER,
       absl::StrCat("waiting for ", WaitingText(now)));
    if (waiting.rank.has_value())
      progress.set_rank(static_cast<int32_t>(*waiting.rank));
    if (waiting.server.has_value()) progress.set_server(*waiting.server);
    // That its shards move is no progress of those it waits for.
    if (waiting.kind != Kind::kServer) return;
    progress.set_for_ms(std::min(
        progress.for_ms(), absl::ToInt64Milliseconds(waiting.since_progress)));
  };
  if (need_ == Need::kState) {
    waits();
    return progress;
  }
  switch (state_) {
    case State::kJoining:
      is(P::ACTIVITY_UNSPECIFIED, "joining");
      break;
    case State::kInitializing:
      is(P::WORKING, "making the initial values");
      break;
    case State::kComputing:
      if (need_ != Need::kNothing) {
        waits();
      } else {
        is(P::WORKING, absl::StrCat("computing step ", clock_));
      }
      break;
    case State::kReducing:
      if (group_.waits_for_sum()) {
        is(P::WAITING_FOR_WORKERS,
           absl::StrCat("waiting for the others' gradients of step ", clock_));
      } else {
        is(P::WORKING, absl::StrCat("computing step ", clock_));
      }
      break;
    case State::kConnecting:
    case State::kCatchingUp:
      is(P::WAITING_FOR_WORKERS, "connecting to the other workers");
      break;
    case State::kTakingState:
      is(P::WORKING, "taking the state from the servers");
      break;
    case State::kReadingState:
      is(P::WORKING, "giving the state to the servers");
      break;
    case State::kWaiting:
    case State::kLeasing:
      is(P::WAITING_FOR_WORKERS,
         absl::StrCat("waiting for ", WaitingText(now)));
      break;
    case State::kTrained:
      is(P::WORKING, "past its last step, and its program is at work");
      break;
    case State::kDone:
      if (AllAreDone(*view())) {
        const wire::WorkerMember* const chief = ChiefOf(*view());
        if (chief != nullptr) progress.set_rank(chief->rank());
        is(P::WAITING_FOR_WORKERS,
           "waiting for the chief to evaluate and write the model");
      } else {
        is(P::WAITING_FOR_WORKERS, "waiting for the other workers to finish");
      }
      break;
    case State::kConcluding:
      is(P::WORKING, "evaluating and writing the final model");
      break;
    case State::kSaving:
      is(P::WORKING, absl::StrCat("trying again to write the final model: ",
                                  conclusion_.save_failure()));
      break;
    case State::kReported:
    case State::kLeaving:
    case State::kEnded:
      is(P::WAITING_FOR_COORDINATOR, "leaving");
      break;
    default:
      waits();
  }
  return progress;
}

}  // namespace slackline
