#include "worker/core/worker_core.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/membership/end_status.h"
#include "common/sync/phases.h"

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
      steps_(options),
      patience_(options.wait_timeout),
      conclusion_({.rank = Rank{options.member.join.index()},
                   .save_timeout = options.save_timeout,
                   .save_retry = options.save_retry}) {
  stats_.set_rank(options.member.join.index());
}

WorkerParts WorkerCore::Parts(absl::Time now, Effects* effects) {
  return {.options = options_,
          .rank = rank_,
          .now = now,
          .member = member_,
          .state = state_,
          .patience = patience_,
          .notices = notices_,
          .counts = counts_,
          .requests = requests_,
          .effects = *effects};
}

void WorkerCore::Run(const WorkerParts& parts) {
  while (!requests_.empty()) {
    const WorkerRequest request = std::move(requests_.front());
    requests_.pop_front();
    std::visit([&](const auto& what) { Do(what, parts); }, request);
  }
}

void WorkerCore::Do(const DecideNext&, const WorkerParts& parts) {
  if (!IsOver(state_)) steps_.Decide(parts);
}

void WorkerCore::Start(absl::Time now, Effects* effects) {
  patience_.Start(now);
  MemberCore::Effects member;
  member_.Start(now, &member);
  Perform(&member, now, effects);
}

// ---- Messages and time ------------------------------------------------------

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
  if (ended() || !steps_.has_begun()) return;
  ClientCore::Effects client;
  steps_.client()->OnMessage(from, message, now, &client);
  Perform(&client, now, effects);
}

void WorkerCore::Wake(absl::Time now) {
  const absl::Duration missed = patience_.Wake(now);
  if (missed == absl::ZeroDuration()) return;
  departure_.OnMissed(missed);
  conclusion_.OnMissed(missed);
}

void WorkerCore::NoticeOthers(absl::Time now) {
  if (!steps_.has_begun() || !WaitsForOthers()) return;
  patience_.SawOthers(steps_.client()->WaitingFor(now), now);
}

void WorkerCore::OnTick(absl::Time now, Effects* effects) {
  if (ended()) return;
  Wake(now);
  // A collective was given up.
  steps_.SayWhereItGoesOn(Parts(now, effects));
  if (now >= member_.NextWakeup()) {
    NoticeOthers(now);
    member_.SetStats(Stats(now));
    MemberCore::Effects member;
    member_.OnTick(now, &member);
    Perform(&member, now, effects);
  }
  if (ended()) return;
  if (steps_.has_begun() && now >= steps_.client()->NextWakeup()) {
    ClientCore::Effects client;
    steps_.client()->OnTick(now, &client);
    Perform(&client, now, effects);
  }
  if (ended()) return;
  if (state_ == State::kLeaving) {
    if (departure_.GivesUpLeaving(now)) End(ending_);
    return;
  }
  const WorkerParts parts = Parts(now, effects);
  if (now >= steps_.lost_group_due()) steps_.TellGroupLost(parts);
  if (departure_.GivesUpJoining(now)) {
    parts.Ask(CannotGoOn{.why = absl::CancelledError(absl::StrCat(
                             departure_.suspend_reason(),
                             "; it was to ask for a checkpoint, and could "
                             "not join again within ",
                             absl::FormatDuration(kSuspendJoinMax)))});
    return Run(parts);
  }
  if (departure_.VerdictIsOverdue(now)) {
    return EndGivenUp(
        "the servers gave this worker up, and the coordinator does not say "
        "why: its lease ran out although it runs",
        effects);
  }
  if (state_ == State::kSaving && conclusion_.SavesAgain(now)) {
    parts.Enter(State::kConcluding);
    return parts.Act(Save{});
  }
  if (WaitsForOthers() && now >= patience_.Deadline() && steps_.has_begun()) {
    // Whoever it waits for may have come nearer.
    patience_.CameNearer(steps_.client()->WaitingFor(now).since_progress, now);
  }
  if (WaitsForOthers() && now >= patience_.Deadline()) {
    parts.Ask(CannotGoOn{
        .why = absl::DeadlineExceededError(absl::StrCat(
            "waited ", Milliseconds(options_.wait_timeout), " for ",
            WaitingText(Whereabouts(), now),
            "; look at the log of whoever is waited for, or raise limits "
            "{ wait_timeout_ms: ... }"))});
    return Run(parts);
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
  notices_.OnSent(member_.AnswerInspection(std::move(inspected),
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
                              steps_.lost_group_due(), patience_.NextWake()});
  if (steps_.has_begun()) next = std::min(next, steps_.client()->NextWakeup());
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
      InSteps(now, effects, [&](const WorkerParts& parts) {
        AskForCheckpoint(reason, parts);
      });
    }
  }
  for (MemberCore::CallResult& answer : member->answers)
    OnAnswer(std::move(answer), now, effects);
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
  for (ClientSend& send : client->sends)
    effects->to_shards.push_back(std::move(send));
  if (state_ == State::kLeaving) return;
  const WorkerParts parts = Parts(now, effects);
  if (!client->failure.ok()) {
    parts.Ask(CannotGoOn{.why = client->failure});
    return Run(parts);
  }
  // A shard may know that the job is over, or that our lease ran out, before we
  // do. The coordinator knows which.
  if (client->fenced && departure_.OnFenced(now, member_.lease()))
    parts.SendHeartbeat(Stats(now));
  const ClientCore& core = *steps_.client();
  patience_.SawBytes(core.bytes_pulled() + core.unacknowledged_bytes(),
                     !client->pulled.empty(), now);
  steps_.OnBrought(parts, client->brought);
  for (PullResult& result : client->pulled) {
    steps_.OnPulled(parts, std::move(result));
    Run(parts);
  }
  if (IsOver(state_)) return;
  steps_.OnClient(parts);
  Run(parts);
}

void WorkerCore::OnAnswer(MemberCore::CallResult answer, absl::Time now,
                          Effects* effects) {
  const WorkerParts parts = Parts(now, effects);
  if (steps_.OnAnswer(parts, answer)) return Run(parts);
  if (departure_.OnAnswer(answer.call_id)) {
    if (state_ == State::kLeaving) End(ending_);
    return;
  }
  if (!notices_.OnAnswer(answer, &effects->log))
    effects->answers.push_back(std::move(answer));
}

void WorkerCore::OnView(const std::shared_ptr<const View>& view, absl::Time now,
                        Effects* effects) {
  const wire::View& proto = view->proto();
  const WorkerParts parts = Parts(now, effects);
  effects->view = view;
  if (proto.state() == wire::FINISHED || proto.state() == wire::FAILED) {
    parts.SendHeartbeat(Stats(now));  // The coordinator waits for this.
    return End(
        proto.state() == wire::FAILED
            ? EndStatus(absl::StatusCode::kFailedPrecondition, proto.end())
            : absl::OutOfRangeError(absl::StrCat("the job has finished: ",
                                                 proto.end().reason())));
  }
  if (proto.state() != wire::RUNNING || IsOver(state_)) return;
  patience_.HeardNews(now);
  if (view->FindWorker(rank_, member_.incarnation()) == nullptr)
    return EndGivenUp(WhyRemoved(now), effects);
  if (!steps_.has_begun()) return steps_.Begin(parts);
  ClientCore::Effects client;
  steps_.FollowView(view, now, &client);
  Perform(&client, now, effects);
  if (IsOver(state_)) return;
  const bool has_left = state_ == State::kDone;
  steps_.OnView(parts);
  Run(parts);
  if (has_left) ConcludeIfDue(parts);
}

// ---- The program, and ends of actions ---------------------------------------

void WorkerCore::OnAsked(absl::Time now, Effects* effects) {
  steps_.OnAsked();
  if (state_ == State::kTrained) Leave(Parts(now, effects));
}

absl::Status WorkerCore::OnGradient(TableId table,
                                    const CodedGradient& gradient,
                                    const StepOptions& options, absl::Time now,
                                    Effects* effects) {
  return steps_.OnGradient(Parts(now, effects), table, gradient, options);
}

absl::Status WorkerCore::OnSkippedTable(TableId table, absl::Time now,
                                        Effects* effects) {
  return steps_.OnSkippedTable(Parts(now, effects), table);
}

void WorkerCore::OnInitialized(absl::Time now, Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnInitialized(parts); });
}

void WorkerCore::OnComputed(double loss, absl::Time now, Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnComputed(parts, loss); });
}

void WorkerCore::OnReducing(absl::Time now) {
  Effects none;
  steps_.OnReducing(Parts(now, &none));
}

void WorkerCore::OnReduced(const Reduced& step, absl::Time now,
                           Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnReduced(parts, step); });
}

void WorkerCore::OnGroupLost(const absl::Status& why, absl::Time now,
                             Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnGroupLost(parts, why); });
}

void WorkerCore::OnStateTaken(const Moved& moved, absl::Time now,
                              Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnStateTaken(parts, moved); });
}

void WorkerCore::OnConnected(absl::Time now, Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.OnConnected(parts); });
}

void WorkerCore::OnCaughtUp(Clock clock, bool took_state, absl::Time now,
                            Effects* effects) {
  InSteps(now, effects, [&](const WorkerParts& parts) {
    steps_.OnCaughtUp(parts, clock, took_state);
  });
}

void WorkerCore::OnStateRead(std::vector<ClientCore::InstalledShard> shards,
                             const Moved& moved, absl::Time now,
                             Effects* effects) {
  InSteps(now, effects, [&](const WorkerParts& parts) {
    steps_.OnStateRead(parts, std::move(shards), moved);
  });
}

void WorkerCore::AskState(StateParts what, absl::Time now, Effects* effects) {
  InSteps(now, effects,
          [&](const WorkerParts& parts) { steps_.AskState(parts, what); });
}

void WorkerCore::OnCutPart(const wire::CutPart& part, absl::Time now,
                           Effects* effects) {
  if (IsOver(state_)) return;
  wire::Call call;
  *call.mutable_cut_part() = part;
  Parts(now, effects).Notify(std::move(call));
}

bool WorkerCore::HasRoom(size_t bytes) const {
  if (!steps_.has_begun()) return true;
  const size_t waiting = steps_.client()->unacknowledged_bytes();
  return waiting == 0 || waiting + bytes <= options_.unacknowledged_bytes_max;
}

void WorkerCore::SetNeed(Need need, absl::Time now) {
  need_ = need;
  patience_.CameFurther(now);
}

uint64_t WorkerCore::Call(wire::Call call, Payload value, absl::Time now,
                          Effects* effects) {
  MemberCore::Effects member;
  const bool gathers = call.has_gather();
  const uint64_t id =
      member_.Call(std::move(call), std::move(value), now, &member);
  if (gathers) steps_.OnGather(id);
  Perform(&member, now, effects);
  return id;
}

// ---- The end ----------------------------------------------------------------

void WorkerCore::Do(const StepsDone&, const WorkerParts& parts) {
  if (steps_.is_asked()) return Leave(parts);
  // Its program may still want something of the job, which ends when all have
  // left. The coordinator hears at once that the training is over.
  parts.SendHeartbeat(Stats(parts.now));
}

void WorkerCore::Leave(const WorkerParts& parts) {
  parts.Enter(State::kDone);
  parts.Log(absl::StrCat("completed ", steps_.clock(), " steps"));
  wire::Call leave;
  leave.mutable_leave();
  parts.Notify(std::move(leave));
  ConcludeIfDue(parts);
}

void WorkerCore::ConcludeIfDue(const WorkerParts& parts) {
  if (Conclusion::IsDue(*view(), member_.incarnation())) steps_.Conclude(parts);
}

void WorkerCore::OnConcluded(const run::Result& result, absl::Time now,
                             Effects* effects) {
  if (state_ != State::kConcluding) return;
  const WorkerParts parts = Parts(now, effects);
  parts.Enter(State::kReported);
  wire::Call leave;
  *leave.mutable_leave()->mutable_result() = result;
  parts.Notify(std::move(leave));
}

void WorkerCore::OnSaveFailed(const absl::Status& why, absl::Time now,
                              Effects* effects) {
  if (state_ != State::kConcluding) return;
  ++counts_.saves_failed;
  std::string log;
  const absl::Status given_up = conclusion_.OnSaveFailed(why, now, &log);
  if (!log.empty()) effects->log.push_back(std::move(log));
  const WorkerParts parts = Parts(now, effects);
  if (given_up.ok()) return parts.Enter(State::kSaving);
  parts.Ask(CannotGoOn{.why = given_up, .stops_job = true});
  Run(parts);
}

void WorkerCore::Suspend(const std::string& reason, absl::Time now,
                         Effects* effects) {
  if (IsOver(state_)) return;
  if (options_.joins_again && member_.incarnation() == 0) {
    if (!departure_.SuspendWhenJoined(reason, now)) return;
    effects->log.push_back(
        absl::StrCat(reason,
                     ": this worker joins again; once it has, it asks for a "
                     "checkpoint, after which the job ends"));
    return;
  }
  InSteps(now, effects,
          [&](const WorkerParts& parts) { AskForCheckpoint(reason, parts); });
}

void WorkerCore::AskForCheckpoint(const std::string& reason,
                                  const WorkerParts& parts) {
  if (!member_.HearsCoordinator(parts.now))
    return parts.Ask(CannotGoOn{.why = absl::CancelledError(reason)});
  parts.Log(SuspendingText(reason));
  parts.Notify(SuspendCall(reason));
}

void WorkerCore::StopJob(const absl::Status& why, absl::Time now,
                         Effects* effects, const std::string& traceback) {
  InSteps(now, effects, [&](const WorkerParts& parts) {
    parts.Ask(
        CannotGoOn{.why = why, .traceback = traceback, .stops_job = true});
  });
}

void WorkerCore::Do(const HasDiverged& how, const WorkerParts& parts) {
  wire::Call call;
  call.mutable_stop()->set_reason(how.why);
  wire::Diverged& diverged = *call.mutable_stop()->mutable_diverged();
  diverged.set_clock(how.clock);
  for (const int32_t worker : how.workers) diverged.add_worker(worker);
  LeaveWith(std::move(call), absl::InvalidArgumentError(how.why), parts);
}

void WorkerCore::Fail(const absl::Status& why, absl::Time now, Effects* effects,
                      const std::string& traceback) {
  InSteps(now, effects, [&](const WorkerParts& parts) {
    parts.Ask(CannotGoOn{.why = why, .traceback = traceback});
  });
}

void WorkerCore::Do(const CannotGoOn& request, const WorkerParts& parts) {
  wire::Call call;
  const std::string reason(request.why.message());
  if (request.stops_job) {
    call.mutable_stop()->set_traceback(request.traceback);
    call.mutable_stop()->set_reason(reason);
  } else {
    call.mutable_leave()->set_traceback(request.traceback);
    call.mutable_leave()->set_failure(reason);
  }
  LeaveWith(std::move(call), request.why, parts);
}

void WorkerCore::LeaveWith(wire::Call call, const absl::Status& why,
                           const WorkerParts& parts) {
  if (IsOver(state_)) return;
  if (member_.incarnation() == 0) return End(why);
  ending_ = why;
  // The last heartbeat may be older than the steps since.
  parts.SendHeartbeat(Stats(parts.now));
  parts.Enter(State::kLeaving);
  if (call.has_stop()) {  // It hears the job's end.
    departure_.OnStopping(parts.now, member_.lease());
    parts.Notify(std::move(call));
  } else {
    departure_.OnLeaving(parts.Call(std::move(call)), parts.now);
  }
}

void WorkerCore::End(const absl::Status& why) {
  if (ended()) return;
  ending_ = why;
  state_ = State::kEnded;
}

// ---- Where it is ------------------------------------------------------------

absl::Status WorkerCore::WhyGroupIsOver(uint64_t group) const {
  if (!ending_.ok()) return ending_;
  return view() == nullptr ? absl::OkStatus()
                           : GroupSteps::WhyOver(group, *view());
}

absl::Status WorkerCore::WhyStepIsLost() const {
  return state_ == State::kReducing ? WhyGroupIsOver(steps_.group())
                                    : absl::OkStatus();
}

bool WorkerCore::WaitsForOthers() const {
  return slackline::WaitsForOthers(state_, need_);
}

WorkerWhereabouts WorkerCore::Whereabouts() const {
  return {.state = state_,
          .need = need_,
          .clock = steps_.clock(),
          .waits_for_sum = steps_.waits_for_sum(),
          .waiting_for = steps_.waiting_for(),
          .save_failure = conclusion_.save_failure(),
          .progress_at = patience_.progress_at(),
          .client = steps_.client(),
          .view = member_.view().get()};
}

run::WorkerProgress WorkerCore::Progress(absl::Time now) const {
  return ProgressOf(Whereabouts(), now);
}

run::WorkerStats WorkerCore::Stats(absl::Time now) const {
  run::WorkerStats stats = stats_;
  stats.set_rank(static_cast<int32_t>(rank_));
  if (steps_.has_begun()) AddTraffic(*steps_.client(), &stats);
  *stats.mutable_progress() = Progress(now);
  // Of the core, which alone knows a step that was skipped at the end.
  stats.set_clock(stats.progress().clock());
  return stats;
}

}  // namespace slackline
