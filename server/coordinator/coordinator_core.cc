#include "server/coordinator/coordinator_core.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/manifest.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "server/coordinator/job_end.h"
#include "server/coordinator/milliseconds.h"

namespace slackline {
namespace {

// Texts of members that others get to see.
constexpr size_t kReasonBytesMax = 1024;
constexpr size_t kHashBytesMax = 64;
constexpr size_t kModelFileBytesMax = 4096;
wire::View FirstView(const CoordinatorCore::Options& options) {
  wire::View view;
  view.set_number(1);
  view.set_job(options.job);
  view.set_run(options.run);
  view.set_state(wire::FORMING);
  return view;
}

// What every manifest of the job says.
checkpoint::Manifest ManifestOf(const CoordinatorCore::Options& options) {
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_job(options.job);
  manifest.set_run(options.run);
  manifest.set_lineage(CoordinatorCore::LineageOf(options));
  manifest.set_version(options.build.version());
  manifest.set_commit(options.build.commit());
  manifest.set_mode(options.mode);
  manifest.set_seed(options.config.train().seed());
  manifest.set_workers(options.workers);
  return manifest;
}

JobTerms::Options TermsOf(const CoordinatorCore::Options& options) {
  return {.job = options.job,
          .config_hash = options.config_hash,
          .config = options.config,
          .protocol = options.protocol,
          .build = options.build,
          .servers = options.servers,
          .workers = options.workers,
          .shard_elements = options.shard_elements,
          .delays_sha256 =
              options.delays == nullptr ? "" : options.delays->sha256(),
          .checkpoint_sha256 = options.resume_sha256};
}

config::Checkpoint CheckpointOf(const CoordinatorCore::Options& options) {
  config::Checkpoint checkpoint = options.config.checkpoint();
  if (!options.keeps_best) checkpoint.clear_best_by();
  return checkpoint;
}

absl::Duration StallTimeout(const CoordinatorCore::Options& options) {
  return absl::Milliseconds(options.config.limits().stall_timeout_ms());
}

absl::Duration SaveTimeout(const CoordinatorCore::Options& options) {
  return absl::Milliseconds(options.config.limits().save_timeout_ms());
}

// Without a folder: from none.
run::CheckpointRecord ResumedFrom(const CoordinatorCore::Options& options) {
  run::CheckpointRecord from;
  if (options.resume == nullptr) return from;
  from.set_folder(options.resume_folder);
  from.set_clock(options.resume->clock());
  from.set_seconds(options.resume->seconds());
  from.set_bytes(BytesOf(*options.resume));
  return from;
}

}  // namespace

absl::Duration CoordinatorCore::Options::lease() const {
  return absl::Milliseconds(config.limits().lease_ms());
}

CoordinatorCore::CoordinatorCore(const Options& options)
    : options_(options),
      editor_(FirstView(options)),
      feed_(&editor_),
      members_({.terms = TermsOf(options),
                .server_hosts = options.server_hosts,
                .worker_hosts = options.worker_hosts,
                .lease = options.lease(),
                .checkpoint_folder = options.resume_folder,
                .coordinator_may_return = options.coordinator_may_return,
                .host_server = options.host_server,
                .host_has_joined = options.host_has_joined,
                .found_within = options.found_within}),
      kept_view_(&members_, &editor_),
      delays_({.source = options.delays,
               .workers = options.workers,
               .seed = options.seed(),
               .stale = options.config.sync().stale(),
               .resume = options.resume}),
      formation_(
          {.workers = options.workers,
           .lease = options.lease(),
           .start_timeout =
               absl::Milliseconds(options.config.limits().start_timeout_ms()),
           .try_links = options.try_links,
           .servers_need_each_other =
               options.config.replicas() > 0 ||
               options.config.rebalance().mode() == config::Rebalance::AUTO,
           .resume = options.resume,
           .resume_folder = options.resume_folder},
          &delays_, &members_, &editor_),
      modes_({.sync = options.config.sync(),
              .workers = options.workers,
              .servers_look_at_gradients =
                  options.config.train().has_gradient_bound(),
              .heartbeat = options.lease() / Membership::kHeartbeatsPerLease},
             &delays_, &members_, &editor_),
      accounts_(options.build, &members_, &editor_),
      outcome_(options.config.train().stop(), options.clock, &members_,
               &accounts_, &modes_, &editor_),
      copies_({.replicas = options.config.replicas(),
               .concurrent = options.config.rebalance().concurrent_moves()},
              &members_, &editor_),
      placement_({.config = options.config.rebalance(),
                  .split_elements_min = options.split_elements_min},
                 options.shard_elements, options.host_server, &members_,
                 &modes_, &copies_, &editor_),
      checkpointer_(
          {.config = CheckpointOf(options),
           .root = options.checkpoint_root,
           .part_timeout = StallTimeout(options) + SaveTimeout(options),
           .manifest = ManifestOf(options),
           .best = options.best_checkpoint},
          &members_, &outcome_, &modes_, &editor_),
      suspension_({.timeout = StallTimeout(options) + SaveTimeout(options),
                   .resumed_from = ResumedFrom(options)},
                  &members_, &checkpointer_, &editor_),
      user_calls_(&placement_, &modes_, &checkpointer_),
      hold_ups_({.timeout = StallTimeout(options),
                 .finish_timeout = SaveTimeout(options) + StallTimeout(options),
                 .lease = options.lease()},
                &editor_),
      gradients_(options.config.train()),
      collectives_({.store = {.bytes_max = options.store_bytes_max,
                              .waiting_max = options.parked_calls_max},
                    .gathers = {.workers = options.workers}},
                   &members_, &editor_),
      grants_(&members_, &editor_),
      inspections_(&members_),
      losses_(&members_, &copies_, &modes_, &editor_),
      after_the_end_(options.lease(), &members_, &inspections_),
      parts_({&members_, &kept_view_, &formation_, &accounts_, &outcome_,
              &suspension_, &checkpointer_, &placement_, &modes_, &copies_,
              &grants_, &hold_ups_, &collectives_, &inspections_,
              &user_calls_}) {}

// ---- Events -----------------------------------------------------------------

void CoordinatorCore::Start(absl::Time now) {
  members_.Run(now);
  formation_.Start(members_.AwakeTime(now));
}

Moment CoordinatorCore::At(absl::Time now) const {
  return {.now = now,
          .awake = members_.AwakeTime(now),
          .seconds = outcome_.Seconds(now)};
}

void CoordinatorCore::Begin(absl::Time now) {
  members_.Run(now);
  hold_ups_.OnEvent(now);
  behind_ = 0;
}

void CoordinatorCore::OnMessage(const PeerId& from, const Message& message,
                                absl::Time now, Effects* effects) {
  Begin(now);
  const size_t first = effects->sends.size();
  // Who only asks, or has not joined yet, belongs to no run.
  const uint64_t run = message.header.run();
  if (run != 0 && run != options_.run) {
    Outgoing reply{.to = from, .message = {}};
    wire::WrongRun& wrong = *reply.message.header.mutable_wrong_run();
    wrong.set_job(options_.job);
    wrong.set_run(options_.run);
    effects->sends.push_back(std::move(reply));
  } else {
    Handle(from, message, now, effects);
  }
  Conclude(first, now, effects);
}

void CoordinatorCore::Handle(const PeerId& from, const Message& message,
                             absl::Time now, Effects* effects) {
  switch (message.header.body_case()) {
    case wire::Header::kJoinRequest:
      return OnJoin(from, message.header.join_request(), now, effects);
    case wire::Header::kHeartbeat:
      return OnHeartbeat(from, message, now, effects);
    case wire::Header::kCall:
      return OnCall(from, message, now, effects);
    default: {
      Outgoing reply{.to = from, .message = {}};
      reply.message.header.mutable_error_reply()->set_error(absl::StrCat(
          "the coordinator takes joins, heartbeats and calls, not body ",
          static_cast<int>(message.header.body_case())));
      effects->sends.push_back(std::move(reply));
    }
  }
}

void CoordinatorCore::OnTick(absl::Time now, Effects* effects) {
  Begin(now);
  const size_t first = effects->sends.size();
  RemoveExpired(now, effects);
  StartIfComplete(now, effects);
  parts_.OnTime(At(now), effects);
  EndStalls(now, effects);
  Conclude(first, now, effects);
}

void CoordinatorCore::RemoveExpired(absl::Time now, Effects* effects) {
  for (const Incarnation incarnation : members_.Expired(now)) {
    const Member* const member = members_.Find(incarnation);
    if (member == nullptr) continue;
    if (editor_.ended() && inspections_.WaitsFor(incarnation)) {
      // It has nothing to say but what it writes down, for a bounded time
      // (AfterTheEnd).
      members_.Hear(*member, now);
      continue;
    }
    Remove(incarnation,
           absl::StrCat("is dead or cut off: not heard for ",
                        MillisecondsText(members_.Silence(*member, now)),
                        ", its lease is ", MillisecondsText(options_.lease())),
           now, effects);
  }
}

void CoordinatorCore::OnCheckpoint(int32_t cut,
                                   const absl::StatusOr<std::string>& folder,
                                   absl::Time now, Effects* effects) {
  Begin(now);
  const size_t first = effects->sends.size();
  checkpointer_.OnCompleted(cut, folder, now, effects);
  Conclude(first, now, effects);
}

void CoordinatorCore::OnBestCheckpoint(const run::BestCheckpoint& best,
                                       absl::Time now, Effects* effects) {
  Begin(now);
  const size_t first = effects->sends.size();
  checkpointer_.OnBest(best, effects);
  Conclude(first, now, effects);
}

uint64_t CoordinatorCore::LineageOf(const Options& options) {
  const bool goes_on =
      options.resume != nullptr && options.resume->lineage() != 0;
  return goes_on ? options.resume->lineage() : options.run;
}

void CoordinatorCore::Fail(const std::string& reason, absl::Time now,
                           Effects* effects) {
  Begin(now);
  const size_t first = effects->sends.size();
  members_.AwaitNoHost();
  editor_.End(JobEndOf(wire::JobEnd::STOPPED, reason));
  Conclude(first, now, effects);
}

void CoordinatorCore::Conclude(size_t first_send, absl::Time now,
                               Effects* effects) {
  const Moment moment = At(now);
  parts_.Advance(moment, effects);
  if (editor_.ended() && after_the_end_.OnEnded(moment.awake)) {
    parts_.OnEnded(moment, effects);
    parts_.Advance(moment, effects);
    if (state() == wire::FINISHED) {
      effects->log.push_back(absl::StrCat("the job has finished: ", reason()));
    } else if (view().end().cause() == wire::JobEnd::SUSPENDED) {
      effects->log.push_back(absl::StrCat("the job is suspended: ", reason()));
    } else {
      effects->warnings.push_back(
          absl::StrCat("the job has failed: ", reason()));
    }
  }
  const auto committed = state() == wire::FORMING
                             ? ViewEditor::Committed::kNothing
                             : editor_.Commit();
  if (committed != ViewEditor::Committed::kNothing) {
    feed_.OnCommit(committed);
    kept_view_.OnCommit(committed);
    for (const auto& [incarnation, member] : members_.all())
      SendView(member.view_sent, member, effects);
  } else if (const Member* const behind = members_.Find(behind_);
             behind != nullptr) {
    SendView(behind->view_known, *behind, effects);
  }
  parts_.AnswerCalls(effects);
  Keep(now, effects);
  for (size_t i = first_send; i < effects->sends.size(); ++i) {
    wire::Header& header = effects->sends[i].message.header;
    header.set_run(options_.run);
    header.set_view_number(view().number());
  }
}

absl::Time CoordinatorCore::NextWakeup() const {
  const WakeUp parts = parts_.NextWakeUp();
  const AwakeClock& awake = members_.awake();
  const absl::Time next = std::min(
      parts.at,
      awake.RealTimeOf(std::min(parts.awake, after_the_end_.OverBy())));
  return std::min(next + absl::Milliseconds(1), awake.NextRun());
}

bool CoordinatorCore::Over(absl::Time now) const {
  return after_the_end_.Over(members_.AwakeTime(now), view().number());
}

void CoordinatorCore::SendView(uint64_t known, const Member& member,
                               Effects* effects) {
  if (state() == wire::FORMING) return;  // Nothing to see yet.
  feed_.Send(member.peer, known, effects);
  members_.NoteViewSent(member, view().number());
}

// ---- Members come and go ----------------------------------------------------

void CoordinatorCore::OnJoin(const PeerId& from, const wire::JoinRequest& join,
                             absl::Time now, Effects* effects) {
  Membership::JoinAnswer answer =
      members_.OnJoin(from, join, view(), modes_.WhyNoneJoins(), now);
  Outgoing out{.to = from, .message = {}};
  *out.message.header.mutable_join_reply() = std::move(answer.reply);
  effects->sends.push_back(std::move(out));
  if (!answer.refused.empty())
    effects->warnings.push_back(std::move(answer.refused));
  if (answer.repeated != nullptr) behind_ = answer.repeated->incarnation;
  if (answer.joined == nullptr) return;
  const Member& member = *answer.joined;
  effects->log.push_back(absl::StrCat(Describe(member), " has joined"));
  parts_.OnJoined(member, effects);
  if (member.worker_role()) {
    editor_.PutWorker(WorkerOf(member));
    editor_.Regroup();
  } else {
    editor_.PutServer(ServerOf(member));
    if (answer.replaces) placement_.OnReplaced();
  }
  StartIfComplete(now, effects);
}

void CoordinatorCore::StartIfComplete(absl::Time now, Effects* effects) {
  if (!formation_.IsComplete(now, effects)) return;
  const wire::JoinRequest& model = members_.model();
  editor_.Run(model.steps_total(), model.steps_per_epoch(),
              model.has_elastic());
  parts_.OnStart(
      {.moment = At(now),
       .tables = formation_.Tables(),
       .seconds_before =
           options_.resume == nullptr ? 0 : options_.resume->seconds()},
      effects);
  if (!formation_.PlaceWorkers(effects)) return;
  parts_.OnRunning(At(now), effects);
  effects->log.push_back(absl::StrCat("all ", options_.servers, " servers and ",
                                      options_.workers,
                                      " workers have joined; the job runs"));
}

void CoordinatorCore::OnLeave(const wire::Leave& leave, const Member& member,
                              absl::Time now, Effects* effects) {
  const std::string failure = Shortened(leave.failure(), kReasonBytesMax);
  if (!failure.empty() && state() == wire::FORMING) {
    wire::JobEnd end =
        JobEndOf(wire::JobEnd::NOT_FORMED,
                 absl::StrCat(Describe(member), " failed: ", failure));
    PutWho(member, &end);
    return editor_.End(std::move(end));
  }
  if (!failure.empty()) {
    accounts_.AddTraceback(member.index(), leave.traceback());
    return Remove(member.incarnation, absl::StrCat("left: ", failure), now,
                  effects);
  }
  if (!member.worker_role()) {
    return Remove(member.incarnation, "had no shards and has left", now,
                  effects);
  }
  if (leave.has_result()) {
    run::Result result = leave.result();
    result.set_model_sha256(Shortened(result.model_sha256(), kHashBytesMax));
    result.set_model_file(Shortened(result.model_file(), kModelFileBytesMax));
    result.DiscardUnknownFields();
    outcome_.OnResult(result);
  }
  parts_.OnNews();
  if (member.done) return;
  members_.SetDone(member);
  if (editor_.ended()) return;
  editor_.PutWorker(WorkerOf(member));
}

void CoordinatorCore::Remove(Incarnation incarnation, const std::string& why,
                             absl::Time now, Effects* effects) {
  if (members_.Find(incarnation) == nullptr) return;
  const Member member = members_.Remove(incarnation, state() != wire::FORMING);
  const std::string sentence = absl::StrCat(Describe(member), " ", why);
  const bool expected =
      editor_.ended() ||
      (member.draining && !editor_.OwnsShards(member.index()));
  (expected ? effects->log : effects->warnings).push_back(sentence);
  const GoneMember gone{.member = member, .sentence = sentence, .now = now};
  if (editor_.ended()) return parts_.OnGone(gone, effects);
  if (member.worker_role()) {
    editor_.RemoveWorker(member.index());
    editor_.Regroup();
  } else if (state() == wire::FORMING) {
    editor_.RemoveServer(member.index());
  } else if (std::optional<wire::JobEnd> end = losses_.OfServer(gone)) {
    editor_.RemoveServer(member.index());
    editor_.End(*std::move(end));
  }
  parts_.OnGone(gone, effects);
  if (member.worker_role() && editor_.running())
    EndIfNoWorkerCanGoOn(gone, effects);
}

void CoordinatorCore::EndIfNoWorkerCanGoOn(const GoneMember& gone,
                                           Effects* effects) {
  if (std::optional<wire::JobEnd> end = losses_.OfWorker(gone))
    return editor_.End(*std::move(end));
  if (!members_.workers().empty()) return;
  for (const Membership::Knock& knock : members_.RecentKnocks(gone.now)) {
    OnJoin(knock.from, knock.join, gone.now, effects);
    if (!members_.workers().empty()) return;
  }
  editor_.End(losses_.OfLastWorker(gone));
}

void CoordinatorCore::EndStalls(absl::Time now, Effects* effects) {
  std::optional<HoldUps::Findings> found = hold_ups_.Look(now, effects);
  if (!found.has_value()) return;
  for (const std::string& sentence : found->stragglers)
    accounts_.AddStraggler(sentence);
  StallWatch::Findings& stalls = found->stalls;
  inspections_.AskFor(stalls.holding_up, now, effects);
  if (stalls.end.has_value()) return editor_.End(*std::move(stalls.end));
  for (const StallWatch::Culprit& culprit : stalls.remove) {
    effects->removed.push_back(culprit.incarnation);
    members_.NoteWhyRemoved(culprit.incarnation, culprit.why_removed);
    Remove(culprit.incarnation, culprit.why_removed, now, effects);
  }
}

// ---- Heartbeats -------------------------------------------------------------

void CoordinatorCore::OnHeartbeat(const PeerId& from, const Message& message,
                                  absl::Time now, Effects* effects) {
  const wire::Heartbeat& heartbeat = message.header.heartbeat();
  Outgoing out{.to = from, .message = {}};
  wire::HeartbeatReply& reply = *out.message.header.mutable_heartbeat_reply();
  reply.set_incarnation(heartbeat.incarnation());
  const Member* const member = members_.Find(heartbeat.incarnation());
  if (member == nullptr || member->peer != from) {
    reply.set_code(wire::FENCED);
    reply.set_error(members_.WhyRemoved(heartbeat.incarnation()));
    effects->sends.push_back(std::move(out));
    return;
  }
  members_.Hear(*member, now);
  members_.NoteViewKnown(*member, message.header.view_number());
  if (member->view_known < view().number()) behind_ = member->incarnation;
  if (member->worker_role()) OnRecords(heartbeat, *member, now, effects);
  members_.NoteStats(*member, now);
  reply.set_code(wire::OK);
  reply.set_records_acked(member->records_acked);
  const bool latest = members_.NoteLatest(*member, heartbeat.sent_micros());
  if (heartbeat.has_links_tried() && latest)
    formation_.OnLinksTried(*member, heartbeat.links_tried());
  formation_.PutRound(*member, &reply);
  inspections_.PutQuestions(*member, &reply);
  if (heartbeat.sent_micros() != 0) {
    reply.set_sent_micros(heartbeat.sent_micros());
    reply.set_heard_micros(absl::ToUnixMicros(now));
  }
  effects->sends.push_back(std::move(out));
  if (heartbeat.has_links_tried()) StartIfComplete(now, effects);
  if (heartbeat.stats_case() == wire::Heartbeat::STATS_NOT_SET || !latest)
    return;
  if (member->worker_role() != heartbeat.has_worker())
    return Refuse("has sent statistics of the other role", *member, effects);
  if (member->worker_role())
    return OnWorkerStats(heartbeat.worker(), *member, now, effects);
  OnServerStats(heartbeat.server(), *member, now, effects);
}

void CoordinatorCore::OnRecords(const wire::Heartbeat& heartbeat,
                                const Member& worker, absl::Time now,
                                Effects* effects) {
  for (run::MetricRecord& record : members_.TakeRecords(heartbeat, worker)) {
    if (record.kind() == run::MetricRecord::EVAL)
      checkpointer_.OnEvaluation(record, effects);
    outcome_.OnRecord(std::move(record), now, effects);
  }
}

void CoordinatorCore::Refuse(const std::string& why, const Member& member,
                             Effects* effects) {
  if (!members_.NoteRefused(member)) return;
  effects->log.push_back(
      absl::StrCat(Describe(member), " ", why,
                   "; its figures do not count while they are like this"));
}

void CoordinatorCore::OnWorkerStats(const run::WorkerStats& stats,
                                    const Member& worker, absl::Time now,
                                    Effects* effects) {
  if (const std::string why = WhyUnfit(stats); !why.empty())
    return Refuse(why, worker, effects);
  run::WorkerStats known = stats;
  known.DiscardUnknownFields();
  // A job knows no other clocks than these; until the worker has its first
  // parameters it says 0.
  known.set_clock(
      std::min(std::max(stats.clock(), worker.begins_at), EndOf(view())));
  members_.SetStats(worker, known, view());
  hold_ups_.OnWorkerStats(worker, known, now);
  checkpointer_.OnWorker(worker);
  if (editor_.running() && members_.AllTrained()) outcome_.OnTrained(now);
  modes_.AskPolicy(now, effects);
  EndStalls(now, effects);  // May remove it.
}

void CoordinatorCore::OnServerStats(const run::ServerStats& stats,
                                    const Member& server, absl::Time now,
                                    Effects* effects) {
  // A change of the mode may wait for this, which is no figure.
  if (editor_.running()) modes_.OnServerStats(server.index(), stats);
  const std::string why =
      WhyUnfit(stats, server.join.thread_size(), view().owner_server_size());
  if (!why.empty()) return Refuse(why, server, effects);
  run::ServerStats known = stats;
  known.DiscardUnknownFields();
  members_.SetStats(server, std::move(known));
  if (!editor_.running()) return;
  hold_ups_.OnServerStats(server);
  GradientWatch::News bad = gradients_.OnReport(stats, view());
  std::move(bad.log.begin(), bad.log.end(), std::back_inserter(effects->log));
  if (bad.end.has_value()) editor_.End(*std::move(bad.end));
  const bool copied = copies_.OnServerStats(server);
  const Placement::Arrivals arrivals =
      placement_.OnServerStats(server, outcome_.Seconds(now), now, effects);
  // Moves wait for copies, and changes of the mode for moves.
  if (copied || arrivals.any) parts_.OnNews();
  if (!arrivals.lost.empty()) checkpointer_.OnServerLost(arrivals.lost);
}

// ---- Calls ------------------------------------------------------------------

void CoordinatorCore::OnCall(const PeerId& from, const Message& message,
                             absl::Time now, Effects* effects) {
  const wire::Call& call = message.header.call();
  const Member* member = members_.Find(call.incarnation());
  if (member != nullptr && member->peer != from) member = nullptr;
  if (member != nullptr) members_.Hear(*member, now);
  if (UserCalls::Takes(call)) {
    if (call.has_drain()) copies_.NoteServers();
    return user_calls_.OnCall(from, call, now, effects);
  }
  if (call.has_inspect()) {
    return inspections_.OnInspect(from, call, state() == wire::FORMING, now,
                                  effects);
  }
  Outgoing out = AnswerTo(from, call.call_id(), wire::OK);
  wire::CallReply& reply = *out.message.header.mutable_call_reply();
  if (call.has_status()) {
    *reply.mutable_status() = Status(now, call.status().moves_known());
  } else if (call.has_stop() &&
             (member != nullptr || call.incarnation() == 0)) {
    // Of a user, or of a member as which it can be checked.
    OnStop(call.stop(), member);
  } else if (call.has_suspend() &&
             (member != nullptr || call.incarnation() == 0)) {
    suspension_.Ask(Shortened(call.suspend().reason(), kReasonBytesMax),
                    members_.AwakeTime(now), effects);
  } else if (call.has_cannot_join()) {
    std::string sentence = members_.OnCannotJoin(call.cannot_join());
    if (!sentence.empty()) effects->warnings.push_back(std::move(sentence));
  } else if (call.has_gather() && call.incarnation() == 0) {
    if (editor_.ended()) {
      reply.set_code(wire::REJECTED);
      reply.set_error(absl::StrCat("the job has ended: ", reason()));
    } else {
      return collectives_.OnCallBeforeStart(from, message, effects);
    }
  } else if (member == nullptr) {
    reply.set_code(wire::FENCED);
    reply.set_error(members_.WhyRemoved(call.incarnation()));
  } else {
    return OnMemberCall(*member, message, now, effects);
  }
  effects->sends.push_back(std::move(out));
}

void CoordinatorCore::OnStop(const wire::Stop& stop, const Member* member) {
  if (member != nullptr && member->worker_role())
    accounts_.AddTraceback(member->index(), stop.traceback());
  outcome_.OnStop(stop, member);
}

void CoordinatorCore::OnMemberCall(const Member& member, const Message& message,
                                   absl::Time now, Effects* effects) {
  const wire::Call& call = message.header.call();
  const auto answer = [&](wire::Code code, const std::string& error = "") {
    effects->sends.push_back(
        AnswerTo(member.peer, call.call_id(), code, error));
  };
  if (call.has_cut_part()) {
    checkpointer_.OnPart(member, call.cut_part(), members_.AwakeTime(now));
    return answer(wire::OK);
  }
  if (call.has_inspected()) {
    const wire::Stacks* const stacks = inspections_.OnInspected(
        member, message, outcome_.Seconds(now), now, effects);
    if (stacks != nullptr)
      hold_ups_.OnPlace(member.incarnation, stacks->where());
    return;
  }
  if (!member.worker_role() && !call.has_leave()) {
    return answer(wire::REJECTED,
                  absl::StrCat(Describe(member),
                               " is a server; all it may say is that it "
                               "leaves, what it has of a checkpoint, and what "
                               "it was asked about itself"));
  }
  if (CollectiveCalls::Takes(call))
    return collectives_.OnCall(member, message, effects);
  if (ExampleGrants::Takes(call)) return grants_.OnCall(member, call, effects);
  switch (call.kind_case()) {
    case wire::Call::kLeave:
      if (call.leave().failure().empty() && !member.worker_role()) {
        if (const std::string why = placement_.WhyMustStay(member);
            !why.empty()) {
          return answer(wire::REJECTED, why);
        }
      }
      answer(wire::OK);
      return OnLeave(call.leave(), member, now, effects);
    case wire::Call::kStepLimit:
    case wire::Call::kArrive:
    case wire::Call::kEntered:
    case wire::Call::kRegroup:
      answer(wire::OK);
      return modes_.OnCall(member, call, effects);
    default:
      return answer(
          wire::REJECTED,
          absl::StrCat("unknown call ", static_cast<int>(call.kind_case())));
  }
}

// ---- For the next coordinator -----------------------------------------------

void CoordinatorCore::Keep(absl::Time now, Effects* effects) {
  if (!kept_.Has("job")) {
    KeepJob({.job = options_.job,
             .run = options_.run,
             .config_hash = options_.config_hash,
             .build = options_.build,
             .protocol = options_.protocol,
             .resume = options_.resume,
             .resume_sha256 = options_.resume_sha256,
             .resume_folder = options_.resume_folder},
            &kept_);
  }
  parts_.Keep(now, &kept_);
  std::vector<StateChange> changes = kept_.TakeChanges();
  std::move(changes.begin(), changes.end(), std::back_inserter(effects->state));
}

absl::Status CoordinatorCore::Recover(const CoordinatorState& state,
                                      absl::Time now, Effects* effects) {
  Start(now);
  Begin(now);
  const size_t first = effects->sends.size();
  const StateReader reader(state);
  SL_RETURN_IF_ERROR(parts_.Load(reader, At(now), effects));
  SL_RETURN_IF_ERROR(checkpointer_.CheckLoaded(reader));
  after_the_end_.OnTakenOver(members_.AwakeTime(now) + options_.found_within);
  kept_.Load(state);
  effects->log.push_back(absl::StrCat(
      "goes on with the job where the coordinator before it was: view ",
      view().number(), ", ", members_.servers().size(), " servers, ",
      members_.workers().size(), " workers"));
  placement_.KeepHost(effects);
  // Its process only reports that.
  if (editor_.ended()) members_.AwaitNoHost();
  // What workers have told each other to connect is lost.
  editor_.Regroup();
  Conclude(first, now, effects);
  return absl::OkStatus();
}

// ---- Reports ----------------------------------------------------------------

CoordinatorCore::Sizes CoordinatorCore::sizes() const {
  const GroupStore& store = collectives_.store();
  const Gathers& gathers = collectives_.gathers();
  return {
      .members = members_.all().size(),
      .past_tokens = members_.past_tokens(),
      .store_keys = store.keys(),
      .store_bytes = store.bytes(),
      .gathers = gathers.open(),
      .gathers_bytes = gathers.bytes(),
      .parked_calls = gathers.waiting() + static_cast<size_t>(store.waiting()),
      .user_calls = user_calls_.kept(),
      .checkpoint_calls = checkpointer_.waiting(),
      .inspections = inspections_.open(),
      .inspection_bytes = inspections_.bytes(),
      .phases = static_cast<size_t>(view().phase_size())};
}

run::Summary CoordinatorCore::Summary() const {
  run::Summary summary;
  summary.set_job(options_.job);
  summary.set_config_hash(options_.config_hash);
  summary.set_workers(options_.workers);
  summary.set_servers(options_.servers);
  parts_.PutSummary(&summary);
  if (options_.resume != nullptr)
    *summary.mutable_resumed_from() = ResumedFrom(options_);
  return summary;
}

int64_t CoordinatorCore::EpochOfNewcomer() const {
  Clock clock = 0;
  int64_t steps_per_epoch = view().steps_per_epoch();
  if (state() == wire::FORMING && options_.resume != nullptr) {
    clock = options_.resume->clock();
    steps_per_epoch = options_.resume->steps_per_epoch();
  } else if (state() == wire::RUNNING && view().elastic()) {
    return grants_.next_epoch();
  } else if (state() == wire::RUNNING) {
    bool any = false;
    for (const auto& [rank, worker] : members_.workers()) {
      const Clock own =
          std::max<Clock>(worker->worker.clock(), worker->begins_at);
      clock = any ? std::min(clock, own) : own;
      any = true;
    }
  }
  return steps_per_epoch > 0 ? clock / steps_per_epoch : 0;
}

wire::StatusReply CoordinatorCore::Status(absl::Time now,
                                          int64_t moves_known) const {
  wire::StatusReply status;
  *status.mutable_view() = view();
  status.set_coordinator_server(options_.host_server);
  status.set_epoch(EpochOfNewcomer());
  parts_.PutStatus({.moment = At(now), .moves_known = moves_known}, &status);
  return status;
}

}  // namespace slackline
