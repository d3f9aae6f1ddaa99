#include "server/coordinator/coordinator_core.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/checkpoint/manifest.h"
#include "common/config/bounds.h"
#include "common/cut.h"
#include "common/some_names.h"
#include "common/status.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/phases.h"
#include "server/coordinator/job_end.h"
#include "server/coordinator/milliseconds.h"
#include "server/coordinator/resume.h"

namespace slackline {
namespace {

// Texts of members that others get to see.
constexpr size_t kReasonBytesMax = 1024;
constexpr size_t kHashBytesMax = 64;
constexpr size_t kModelFileBytesMax = 4096;
// Of one heartbeat; members send a quarter of it.
constexpr int kRecordsMax = 1024;
constexpr int kCulpritsMax = 256;
// Why members are missing, in the reason of a job's end.
constexpr size_t kSentencesOfEndMax = 3;
// How long the members of a job at least have to connect with each other.
constexpr int kLinkLeases = 2;

// What a worker says of its training.
void PutDiverged(const wire::Diverged& diverged, wire::JobEnd* end) {
  end->set_clock(std::clamp<Clock>(diverged.clock(), 0, kClockMax));
  for (const int32_t worker : diverged.worker()) {
    if (worker < 0 || end->worker_size() == kCulpritsMax) continue;
    end->add_worker(worker);
  }
}

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
  manifest.set_seed(static_cast<int64_t>(options.seed));
  manifest.set_workers(options.workers);
  return manifest;
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

bool HasBadValues(const run::MetricRecord& record) {
  return static_cast<size_t>(record.value_size()) > kMetricValuesMax ||
         absl::c_any_of(record.value(), [](const auto& value) {
           return value.first.size() > kMetricNameBytesMax ||
                  !std::isfinite(value.second);
         });
}

}  // namespace

CoordinatorCore::CoordinatorCore(const Options& options)
    : options_(options),
      editor_(FirstView(options)),
      feed_(&editor_),
      members_({.job = options.job,
                .config_hash = options.config_hash,
                .config = options.config,
                .server_hosts = options.server_hosts,
                .worker_hosts = options.worker_hosts,
                .protocol = options.protocol,
                .build = options.build,
                .servers = options.servers,
                .workers = options.workers,
                .shard_elements = options.shard_elements,
                .optimizer = options.optimizer,
                .lease = options.lease,
                .delays_sha256 =
                    options.delays == nullptr ? "" : options.delays->sha256(),
                .checkpoint_sha256 = options.resume_sha256,
                .checkpoint_folder = options.resume_folder,
                .coordinator_may_return = options.coordinator_may_return,
                .host_server = options.host_server,
                .host_has_joined = options.host_has_joined,
                .found_within = options.found_within}),
      links_({.lease = options.lease,
              .servers_need_each_other =
                  options.replicas > 0 ||
                  options.rebalance.config.mode() == config::Rebalance::AUTO},
             &members_),
      modes_({.sync = options.sync,
              .workers = options.workers,
              .servers_look_at_gradients = options.gradient_bound.has_value(),
              .heartbeat = options.lease / Membership::kHeartbeatsPerLease},
             &members_, &editor_),
      copies_({.replicas = options.replicas,
               .concurrent = options.rebalance.config.concurrent_moves()},
              &members_, &editor_),
      placement_(options.rebalance, options.host_server, &members_, &modes_,
                 &copies_, &editor_),
      checkpointer_(
          {.config = options.checkpoint,
           .root = options.checkpoint_root,
           .part_timeout = options.stall_timeout + options.save_timeout,
           .manifest = ManifestOf(options),
           .best = options.best_checkpoint},
          &members_, &modes_, &editor_),
      suspension_({.timeout = options.stall_timeout + options.save_timeout,
                   .resumed_from = ResumedFrom(options)},
                  &members_, &checkpointer_, &editor_),
      user_calls_(&placement_, &modes_, &checkpointer_),
      outcome_(options.stop, options.clock, &editor_),
      stalls_({.timeout = options.stall_timeout,
               .finish_timeout = options.save_timeout + options.stall_timeout,
               .lease = options.lease}),
      stragglers_(StragglerWatch::Options()),
      gradients_(options.nonfinite, options.gradient_bound),
      store_({.bytes_max = options.store_bytes_max,
              .waiting_max = options.parked_calls_max}),
      gathers_({.workers = options.workers}),
      inspections_(&members_),
      programs_(options.build) {}

// ---- Events -----------------------------------------------------------------

void CoordinatorCore::Start(absl::Time now) {
  members_.Run(now);
  started_ = members_.AwakeTime(now);
}

void CoordinatorCore::Begin(absl::Time now) {
  members_.Run(now);
  stalls_.OnTime(now);
  news_ = {};
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
  const absl::Time awake = members_.AwakeTime(now);
  if (state() == wire::FORMING && awake > GivesUpFormingAt())
    editor_.End(NotFormed(now));
  for (const Incarnation incarnation : members_.Expired(now)) {
    Member* const member = members_.Find(incarnation);
    if (member == nullptr) continue;
    if (editor_.ended() && inspections_.WaitsFor(incarnation)) {
      // It has nothing to say but what it writes down: OverBy() bounds that.
      members_.Hear(member, now);
      continue;
    }
    Remove(incarnation,
           absl::StrCat("is dead or cut off: not heard for ",
                        MillisecondsText(members_.Silence(*member, now)),
                        ", its lease is ", MillisecondsText(options_.lease)),
           now, effects);
  }
  for (std::string& sentence : links_.TakeNews(awake))
    effects->warnings.push_back(std::move(sentence));
  StartIfComplete(now, effects);
  inspections_.OnTime(now);
  outcome_.OnTime(now);
  modes_.AskPolicy(now, effects);
  placement_.PlanIfDue(now, effects);
  EndStalls(now, effects);
  Conclude(first, now, effects);
}

absl::Time CoordinatorCore::GivesUpFormingAt() const {
  const absl::Time joined_by = started_ + options_.start_timeout;
  if (!links_.under_way()) return joined_by;
  return std::max(joined_by, links_.since() + options_.lease * kLinkLeases);
}

wire::JobEnd CoordinatorCore::NotFormed(absl::Time now) const {
  const auto some = [](std::vector<std::string> sentences) {
    if (sentences.size() > kSentencesOfEndMax)
      sentences.resize(kSentencesOfEndMax);
    return absl::StrJoin(sentences, "; ");
  };
  const std::string within =
      absl::StrCat(" within ", MillisecondsText(options_.start_timeout));
  const Membership::Missing missing = members_.WhoIsMissing();
  if (missing.empty()) {
    const std::vector<std::string> left = links_.Left(members_.AwakeTime(now));
    return JobEndOf(
        wire::JobEnd::NOT_FORMED,
        absl::StrCat(
            "not all members could connect with each other", within, ": ",
            some(left),
            left.size() > kSentencesOfEndMax
                ? absl::StrCat("; and ", left.size() - kSentencesOfEndMax,
                               " more, as the log of server 0 says")
                : "",
            "; let these connections through the firewalls between"));
  }
  const std::string why = some(members_.WhyMissing(missing));
  wire::JobEnd end = JobEndOf(
      wire::JobEnd::NOT_FORMED,
      absl::StrCat(
          SomeNames(members_.NamesOf(missing)), " did not join", within,
          why.empty() ? "" : "; ", why,
          "; look at their logs, or raise limits { start_timeout_ms: ... }"));
  end.mutable_server()->Add(missing.servers.begin(), missing.servers.end());
  end.mutable_worker()->Add(missing.workers.begin(), missing.workers.end());
  return end;
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
  if (news_.workers && editor_.running() && AllDone())
    outcome_.OnAllDone(now, modes_.ended_early());
  const absl::Time awake = members_.AwakeTime(now);
  suspension_.Advance(awake, effects);
  if (editor_.running()) {
    if (checkpointer_.Advance(now, awake, effects)) placement_.NoteNews();
    placement_.Order();
    if (modes_.Advance(outcome_.Seconds(now), effects)) {
      placement_.NoteNews();  // It may have waited for a change that is done.
      placement_.Order();
    }
    if (copies_.Order(effects)) {
      placement_.NoteNews();
      placement_.Order();
    }
    checkpointer_.FollowCut(outcome_.Seconds(now), awake);
    // A change of the mode that waits for its clock is dropped then.
    if (EndIfAllLeased(effects)) modes_.Advance(outcome_.Seconds(now), effects);
    if (view().end_clock() > 0) {
      std::vector<LeaseBook::Answer> leased;
      leases_.EndAt(view().end_clock(), &leased);
      Send(std::move(leased), effects);
    }
    suspension_.Advance(awake, effects);
  }
  if (editor_.ended() && ended_at_ == absl::InfiniteFuture()) {
    ended_at_ = awake;
    outcome_.OnEnded(now);
    checkpointer_.OnEnded(effects);
    suspension_.Advance(awake, effects);
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
    members_.ForEach(
        [&](Member* member) { SendView(member->view_sent, member, effects); });
    std::vector<GroupStore::Answer> answers;
    if (view().group() == view().number())
      store_.BeginGroup(view().group(), &answers);
    Send(std::move(answers), effects);  // After the view that explains them.
  } else if (Member* const behind = members_.Find(news_.behind);
             behind != nullptr) {
    SendView(behind->view_known, behind, effects);
  }
  if (news_.workers) gathers_.Complete(effects);
  user_calls_.AnswerCheckpoints(effects);
  Keep(committed, now, effects);
  for (size_t i = first_send; i < effects->sends.size(); ++i) {
    wire::Header& header = effects->sends[i].message.header;
    header.set_run(options_.run);
    header.set_view_number(view().number());
  }
}

absl::Time CoordinatorCore::NextWakeup() const {
  absl::Time awake = members_.NextExpiry();
  if (state() == wire::FORMING)
    awake = std::min({awake, GivesUpFormingAt(), links_.NextNews()});
  awake = std::min(awake, OverBy());
  if (editor_.running()) {
    awake = std::min(
        {awake, checkpointer_.NextDueAwake(), suspension_.GivesUpAt()});
  }
  absl::Time next = members_.awake().RealTimeOf(awake);
  if (editor_.running()) {
    next = std::min({next, placement_.NextPlan(), outcome_.StopTime(),
                     modes_.NextLook(), checkpointer_.NextDue()});
  }
  return std::min(next + absl::Milliseconds(1), members_.awake().NextRun());
}

absl::Time CoordinatorCore::KnownBy() const {
  return std::max(ended_at_, found_by_) + options_.lease;
}

absl::Time CoordinatorCore::OverBy() const {
  return inspections_.waited_for() ? KnownBy() + Inspections::kPatience
                                   : KnownBy();
}

bool CoordinatorCore::Over(absl::Time now) const {
  if (!editor_.ended()) return false;
  const absl::Time awake = members_.AwakeTime(now);
  if (awake > OverBy()) return true;
  if (inspections_.waited_for()) return false;  // Members tell what they have.
  if (awake <= members_.AskedUntil()) return false;
  return std::all_of(members_.all().begin(), members_.all().end(),
                     [&](const auto& entry) {
                       return entry.second.view_known >= view().number();
                     });
}

void CoordinatorCore::SendView(uint64_t known, Member* member,
                               Effects* effects) const {
  if (state() == wire::FORMING) return;  // Nothing to see yet.
  feed_.Send(member->peer, known, effects);
  member->view_sent = view().number();
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
  if (answer.repeated != nullptr) news_.behind = answer.repeated->incarnation;
  if (answer.joined == nullptr) return;
  const Member& member = *answer.joined;
  effects->log.push_back(absl::StrCat(Describe(member), " has joined"));
  if (std::string differs = programs_.OnJoin(member.join); !differs.empty())
    effects->warnings.push_back(std::move(differs));
  checkpointer_.NoteMembers();
  inspections_.OnJoined(member);
  if (member.worker_role()) {
    editor_.PutWorker(WorkerOf(member));
    editor_.Regroup();
  } else {
    editor_.PutServer(ServerOf(member));
    copies_.NoteServers();
    if (answer.replaces) placement_.OnReplaced();
  }
  StartIfComplete(now, effects);
}

void CoordinatorCore::StartIfComplete(absl::Time now, Effects* effects) {
  if (state() != wire::FORMING || !members_.WhoIsMissing().empty()) return;
  if (options_.try_links && !LinksAreThere(now, effects)) return;
  const wire::JoinRequest& model = members_.model();
  std::vector<wire::Table> tables(model.table().begin(), model.table().end());
  for (wire::Table& table : tables) {
    if (options_.resume == nullptr) break;
    table.clear_initializer();
    table.mutable_initializer()->set_kind(wire::Initializer::OF_CHECKPOINT);
  }
  placement_.Start(tables, options_.shard_elements, now);
  copies_.Start();
  data_ = members_.FindWorker(0)->join.data();
  data_hash_ = model.data_hash();
  editor_.Run(model.steps_total(), model.steps_per_epoch(),
              model.has_elastic());
  leases_.Start(model.has_elastic() ? std::optional(model.elastic())
                                    : std::nullopt);
  modes_.Start(effects);
  if (options_.resume != nullptr) GoOnFromCheckpoint(effects);
  if (editor_.ended()) return;
  if (const wire::Phase* const given = GivenDelaysPhase(view())) {
    const std::string unfit = WhyDelaysUnfit(given->from(), effects);
    if (!unfit.empty())
      return editor_.End(JobEndOf(wire::JobEnd::NOT_FORMED, unfit));
  }
  outcome_.OnRunning(
      now, options_.resume == nullptr ? 0 : options_.resume->seconds());
  Clock begins_at = view().steps_total();
  for (const wire::WorkerMember& worker : view().worker())
    begins_at = std::min<Clock>(begins_at, worker.begins_at());
  editor_.SetBeginsAt(begins_at);
  checkpointer_.OnRunning(data_, data_hash_, begins_at, now, effects);
  gathers_.Start(members_.workers(), effects);
  inspections_.Start(effects);
  effects->log.push_back(absl::StrCat("all ", options_.servers, " servers and ",
                                      options_.workers,
                                      " workers have joined; the job runs"));
}

bool CoordinatorCore::LinksAreThere(absl::Time now, Effects* effects) {
  const absl::Time awake = members_.AwakeTime(now);
  if (!links_.under_way()) {
    links_.Begin(awake);
    for (const auto& [incarnation, member] : members_.all()) {
      Outgoing out{.to = member.peer, .message = {}};
      wire::HeartbeatReply& reply =
          *out.message.header.mutable_heartbeat_reply();
      reply.set_incarnation(incarnation);
      reply.set_code(wire::OK);
      reply.set_records_acked(member.records_acked);
      links_.PutRound(member, &reply);
      effects->sends.push_back(std::move(out));
    }
  }
  if (!links_.Complete(awake)) return false;
  for (std::string& sentence : links_.TakeNews(awake))
    effects->warnings.push_back(std::move(sentence));
  links_.Stop();
  return true;
}

void CoordinatorCore::GoOnFromCheckpoint(Effects* effects) {
  const checkpoint::Manifest& manifest = *options_.resume;
  const std::string& folder = options_.resume_folder;
  if (const std::string why = WhyNotFrom(manifest, view()); !why.empty()) {
    return editor_.End(
        JobEndOf(wire::JobEnd::NOT_FORMED,
                 absl::StrCat("the job cannot go on from checkpoint ", folder,
                              ": ", why)));
  }
  if (!manifest.data_hash().empty() && !data_hash_.empty() &&
      manifest.data_hash() != data_hash_) {
    effects->warnings.push_back(absl::StrCat(
        "the checkpoint was trained on other examples: ", manifest.data(),
        ", and the job trains on ", data_));
  }
  const Clock end = view().steps_total();
  Clock smallest = end;
  Clock largest = 0;
  for (const auto& [rank, clock] : BeginningsOf(manifest, view())) {
    Member* const worker = members_.FindWorker(rank);
    worker->begins_at = clock;
    worker->worker.set_clock(clock);
    editor_.PutWorker(WorkerOf(*worker));
    smallest = std::min(smallest, clock);
    largest = std::max(largest, clock);
  }
  editor_.SetEntered(PhaseIndexAt(view(), smallest));
  // The servers have the model, so nobody steps by all-reduce to its end: who
  // joins such a phase would wait for the others for ever.
  if (smallest == end) editor_.SetArrived(end);
  effects->log.push_back(absl::StrCat(
      "the job goes on from checkpoint ", folder, ", at ",
      largest > smallest ? absl::StrCat("steps ", smallest, " to ", largest)
                         : absl::StrCat("step ", smallest),
      " of ", end, smallest == end ? ": nothing is left to do" : ""));
}

std::string CoordinatorCore::WhyDelaysUnfit(Clock from,
                                            Effects* effects) const {
  SL_CHECK(options_.delays != nullptr, "the delays of the job are not here");
  if (view().elastic()) {
    return "the job cannot follow the delays that are given: with elastic "
           "sampling nobody knows which worker does which step; take static "
           "sampling";
  }
  const absl::StatusOr<std::shared_ptr<const DelayPlan>> plan =
      options_.delays->PlanFor(options_.workers, from, view().steps_total(),
                               options_.seed);
  const absl::Status fits =
      plan.ok() ? (*plan)->CheckShards(view().owner_server_size())
                : plan.status();
  if (!fits.ok()) {
    return absl::StrCat("the job cannot follow the delays that are given: ",
                        fits.message());
  }
  int64_t bytes = 0;
  for (const wire::Table& table : view().table())
    bytes += TableElements(table) * static_cast<int64_t>(sizeof(float));
  const int64_t kept = (*plan)->kept_versions_max();
  effects->log.push_back(absl::StrCat(
      "delays are given: the servers keep up to ", kept,
      " earlier versions of the model for gradients that are computed from "
      "them, ",
      (kept * bytes) >> 20,
      " MiB in all, beside the gradients that wait for their turn"));
  return "";
}

void CoordinatorCore::OnLeave(const wire::Leave& leave, Member* member,
                              absl::Time now, Effects* effects) {
  const std::string failure = Cut(leave.failure(), kReasonBytesMax);
  if (!failure.empty() && state() == wire::FORMING) {
    wire::JobEnd end =
        JobEndOf(wire::JobEnd::NOT_FORMED,
                 absl::StrCat(Describe(*member), " failed: ", failure));
    PutWho(*member, &end);
    return editor_.End(std::move(end));
  }
  if (!failure.empty()) {
    totals_.AddTraceback(member->index(), leave.traceback());
    return Remove(member->incarnation, absl::StrCat("left: ", failure), now,
                  effects);
  }
  if (!member->worker_role()) {
    return Remove(member->incarnation, "had no shards and has left", now,
                  effects);
  }
  if (leave.has_result()) {
    run::Result result = leave.result();
    result.set_model_sha256(Cut(result.model_sha256(), kHashBytesMax));
    result.set_model_file(Cut(result.model_file(), kModelFileBytesMax));
    result.DiscardUnknownFields();
    outcome_.OnResult(result);
  }
  news_.workers = true;
  if (member->done) return;
  member->done = member->trained = true;
  if (editor_.ended()) return;
  editor_.PutWorker(WorkerOf(*member));
  modes_.NoteNews();
}

void CoordinatorCore::OnServerGone(const Member& server,
                                   const std::string& sentence, absl::Time now,
                                   Effects* effects) {
  const int32_t index = server.index();
  if (state() == wire::FORMING) return editor_.RemoveServer(index);
  if (const std::string why = copies_.WhyNotReplaceable(index); !why.empty()) {
    editor_.RemoveServer(index);
    wire::JobEnd end =
        JobEndOf(wire::JobEnd::SERVER_LOST, absl::StrCat(sentence, why));
    PutWho(server, &end);
    return editor_.End(std::move(end));
  }
  if (editor_.OwnsShards(index)) checkpointer_.OnServerLost(sentence);
  copies_.OnGone(server, sentence, effects);
  // Whoever takes the shards over counts the gradients that they hold, as
  // accepted and as held.
  run::ServerStats counted = server.server;
  counted.set_pushes(counted.pushes() -
                     std::min(counted.pushes(), counted.held()));
  counted.clear_held();
  totals_.AddGone(counted);
  placement_.OnGone(server, now, effects);
  checkpointer_.NoteMembers();
  modes_.OnServerGone(index);
}

void CoordinatorCore::Remove(Incarnation incarnation, const std::string& why,
                             absl::Time now, Effects* effects) {
  if (members_.Find(incarnation) == nullptr) return;
  const Member member = members_.Remove(incarnation, state() != wire::FORMING);
  links_.Stop();
  store_.Forget(incarnation);
  gathers_.Forget(incarnation);
  std::vector<LeaseBook::Answer> leased;
  leases_.Forget(incarnation, &leased);
  Send(std::move(leased), effects);
  stalls_.OnGone(incarnation);
  const std::string sentence = absl::StrCat(Describe(member), " ", why);
  inspections_.OnGone(member, sentence);
  const bool expected =
      editor_.ended() ||
      (member.draining && !editor_.OwnsShards(member.index()));
  (expected ? effects->log : effects->warnings).push_back(sentence);
  if (editor_.ended()) return;
  news_.workers = true;
  if (!member.worker_role())
    return OnServerGone(member, sentence, now, effects);
  editor_.RemoveWorker(member.index());
  editor_.Regroup();
  if (state() == wire::FORMING) return;
  totals_.AddGone(member.index(), member.worker);
  const std::string lost =
      absl::StrCat(sentence, ", at clock ", member.worker.clock());
  totals_.AddLost(lost);
  modes_.OnGone(member);
  checkpointer_.NoteMembers();
  if (modes_.follows_given_delays() && !member.trained) {
    wire::JobEnd end = JobEndOf(
        wire::JobEnd::WORKER_LOST,
        absl::StrCat(lost,
                     "; the job's delays are given, and the others cannot go "
                     "on without its gradients: start the job again"));
    PutWho(member, &end);
    return editor_.End(std::move(end));
  }
  if (!members_.workers().empty()) return;
  if (const std::string none = WhyNoneFollows(now, effects); !none.empty()) {
    wire::JobEnd end =
        JobEndOf(wire::JobEnd::NO_WORKER_LEFT,
                 absl::StrCat(lost, "; no worker is left", none));
    PutWho(member, &end);
    editor_.End(std::move(end));
  }
}

std::string CoordinatorCore::WhyNoneFollows(absl::Time now, Effects* effects) {
  for (const Membership::Knock& knock : members_.RecentKnocks(now)) {
    if (!RuleOf(view().phase(view().entered()).mode()).over_servers()) {
      return absl::StrCat(
          ", and the model is lost with it, because the workers hold it while "
          "they all-reduce; worker ",
          knock.join.index(), ", which has been started again, cannot go on");
    }
    OnJoin(knock.from, knock.join, now, effects);
    if (!members_.workers().empty()) return "";
  }
  return ", and none that has been started again waits to join";
}

bool CoordinatorCore::EndIfAllLeased(Effects* effects) {
  if (!leases_.used_up() || view().end_clock() > 0) return false;
  std::vector<Incarnation> workers;
  for (const auto& [rank, worker] : members_.workers())
    workers.push_back(worker->incarnation);
  const std::optional<Clock> end = leases_.EndOf(workers);
  if (!end.has_value()) return false;
  // Some of them may be on their way into a phase that begins there.
  const int next = view().entered() + 1;
  if (next < view().phase_size() && view().phase(next).from() <= *end)
    return false;
  std::vector<LeaseBook::Answer> none;  // All are at this clock.
  leases_.EndAt(*end, &none);
  leases_.Ended();
  effects->log.push_back(absl::StrCat("all ", leases_.examples_done(),
                                      " examples are done, after ", *end,
                                      " steps"));
  editor_.SetEndClock(*end);
  modes_.NoteNews();
  return true;
}

bool CoordinatorCore::AllDone() const {
  return std::all_of(members_.workers().begin(), members_.workers().end(),
                     [](const auto& entry) { return entry.second->done; });
}

void CoordinatorCore::EndStalls(absl::Time now, Effects* effects) {
  if (!editor_.running()) {
    stragglers_.Clear();
    return held_up_.clear();
  }
  if (now < next_look_) return;
  StragglerWatch::News slow = stragglers_.Look(view());
  for (const std::string& sentence : slow.begun) totals_.AddStraggler(sentence);
  for (std::vector<std::string>* const sentences : {&slow.begun, &slow.ended})
    std::move(sentences->begin(), sentences->end(),
              std::back_inserter(effects->log));
  next_look_ = now + options_.lease / (4 * Membership::kHeartbeatsPerLease);
  StallWatch::Findings found = stalls_.Look(view(), now);
  held_up_ = std::move(found.held_up);
  std::move(found.news.begin(), found.news.end(),
            std::back_inserter(effects->log));
  inspections_.AskFor(found.holding_up, now, effects);
  if (found.end.has_value()) return editor_.End(*std::move(found.end));
  for (const StallWatch::Culprit& culprit : found.remove) {
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
  Member* const member = members_.Find(heartbeat.incarnation());
  if (member == nullptr || member->peer != from) {
    reply.set_code(wire::FENCED);
    reply.set_error(members_.WhyRemoved(heartbeat.incarnation()));
    effects->sends.push_back(std::move(out));
    return;
  }
  members_.Hear(member, now);
  member->view_known =
      std::max(member->view_known, message.header.view_number());
  if (member->view_known < view().number()) news_.behind = member->incarnation;
  if (member->worker_role()) OnRecords(heartbeat, member, now, effects);
  members_.NoteStats(*member, now);
  reply.set_code(wire::OK);
  reply.set_records_acked(member->records_acked);
  if (heartbeat.has_links_tried())
    links_.OnReport(*member, heartbeat.links_tried());
  links_.PutRound(*member, &reply);
  inspections_.PutQuestions(*member, &reply);
  if (heartbeat.sent_micros() != 0) {
    reply.set_sent_micros(heartbeat.sent_micros());
    reply.set_heard_micros(absl::ToUnixMicros(now));
  }
  effects->sends.push_back(std::move(out));
  if (heartbeat.has_links_tried()) StartIfComplete(now, effects);
  if (heartbeat.stats_case() == wire::Heartbeat::STATS_NOT_SET) return;
  if (member->worker_role() != heartbeat.has_worker())
    return Refuse("has sent statistics of the other role", member, effects);
  if (member->worker_role())
    return OnWorkerStats(heartbeat.worker(), member, now, effects);
  OnServerStats(heartbeat.server(), member, now, effects);
}

void CoordinatorCore::OnRecords(const wire::Heartbeat& heartbeat,
                                Member* worker, absl::Time now,
                                Effects* effects) {
  // The rest comes again.
  const int count = std::min(heartbeat.record_size(), kRecordsMax);
  for (int i = 0; i < count; ++i) {
    if (heartbeat.first_record() + i != worker->records_acked) continue;
    ++worker->records_acked;
    members_.NoteAcked(*worker);
    run::MetricRecord record = heartbeat.record(i);
    if (record.kind() != run::MetricRecord::TRAIN &&
        record.kind() != run::MetricRecord::EVAL) {
      continue;  // Of no version that we know.
    }
    record.set_rank(worker->index());
    record.set_model_sha256(Cut(record.model_sha256(), kHashBytesMax));
    record.DiscardUnknownFields();
    if (HasBadValues(record)) record.clear_value();
    if (record.kind() == run::MetricRecord::EVAL)
      checkpointer_.OnEvaluation(record, effects);
    outcome_.OnRecord(std::move(record), now, effects);
  }
}

void CoordinatorCore::Refuse(const std::string& why, Member* member,
                             Effects* effects) {
  if (std::exchange(member->refused, true)) return;
  effects->log.push_back(absl::StrCat(
      Describe(*member), " ", why,
      "; its statistics are not looked at while they are like this"));
}

void CoordinatorCore::OnWorkerStats(const run::WorkerStats& stats,
                                    Member* worker, absl::Time now,
                                    Effects* effects) {
  if (const std::string why = WhyUnfit(stats); !why.empty())
    return Refuse(why, worker, effects);
  worker->worker = stats;
  worker->worker.DiscardUnknownFields();
  // A job knows no other clocks than these.
  worker->worker.set_clock(std::clamp<Clock>(stats.clock(), 0, EndOf(view())));
  worker->trained |= HasTrained(worker->worker.progress(), view());
  stalls_.OnReport(worker->incarnation, worker->worker.progress(),
                   worker->trained, now);
  if (worker->trained) {
    stragglers_.OnTrained(worker->incarnation);
  } else {
    stragglers_.OnReport(worker->incarnation, worker->worker);
  }
  worker->worker.clear_answers();  // Nobody else asks for them.
  checkpointer_.OnWorker(*worker);
  if (editor_.running() && members_.AllTrained()) outcome_.OnTrained(now);
  modes_.AskPolicy(now, effects);
  EndStalls(now, effects);  // May remove it.
}

void CoordinatorCore::OnServerStats(const run::ServerStats& stats,
                                    Member* server, absl::Time now,
                                    Effects* effects) {
  const std::string why =
      WhyUnfit(stats, server->join.thread_size(), view().owner_server_size());
  if (!why.empty()) return Refuse(why, server, effects);
  server->server = stats;
  server->server.DiscardUnknownFields();
  if (!editor_.running()) return;
  stragglers_.OnServerReport(server->incarnation, server->server);
  GradientWatch::News bad = gradients_.OnReport(stats, view());
  std::move(bad.log.begin(), bad.log.end(), std::back_inserter(effects->log));
  if (bad.end.has_value()) editor_.End(*std::move(bad.end));
  // Moves wait for copies.
  if (copies_.OnServerStats(*server)) placement_.NoteNews();
  const Placement::Arrivals arrivals =
      placement_.OnServerStats(*server, outcome_.Seconds(now), now, effects);
  if (arrivals.any) modes_.NoteNews();
  if (!arrivals.lost.empty()) checkpointer_.OnServerLost(arrivals.lost);
  modes_.OnServerStats(*server);
}

// ---- Calls ------------------------------------------------------------------

void CoordinatorCore::Send(std::vector<GroupStore::Answer> answers,
                           Effects* effects) {
  for (GroupStore::Answer& answer : answers) {
    Outgoing out =
        AnswerTo(answer.to.peer, answer.to.call_id, answer.code, answer.error);
    if (answer.has_value)
      out.message.payloads.push_back(std::move(answer.value));
    effects->sends.push_back(std::move(out));
  }
}

void CoordinatorCore::Send(std::vector<LeaseBook::Answer> answers,
                           Effects* effects) {
  for (LeaseBook::Answer& answer : answers) {
    Outgoing out =
        AnswerTo(answer.to.peer, answer.to.call_id, answer.code, answer.error);
    if (answer.code == wire::OK) {
      *out.message.header.mutable_call_reply()->mutable_leased() =
          std::move(answer.leased);
    }
    effects->sends.push_back(std::move(out));
  }
}

void CoordinatorCore::OnCall(const PeerId& from, const Message& message,
                             absl::Time now, Effects* effects) {
  const wire::Call& call = message.header.call();
  Member* member = members_.Find(call.incarnation());
  if (member != nullptr && member->peer != from) member = nullptr;
  if (member != nullptr) members_.Hear(member, now);
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
    suspension_.Ask(Cut(call.suspend().reason(), kReasonBytesMax),
                    members_.AwakeTime(now), effects);
  } else if (call.has_cannot_join()) {
    std::string sentence = members_.OnCannotJoin(call.cannot_join());
    if (!sentence.empty()) effects->warnings.push_back(std::move(sentence));
  } else if (call.has_gather() && call.incarnation() == 0) {
    if (editor_.ended()) {
      reply.set_code(wire::REJECTED);
      reply.set_error(absl::StrCat("the job has ended: ", reason()));
    } else {
      news_.workers = true;
      return gathers_.EnterBeforeStart(
          from, call,
          message.payloads.empty() ? Payload() : message.payloads.front(),
          effects);
    }
  } else if (member == nullptr) {
    reply.set_code(wire::FENCED);
    reply.set_error(members_.WhyRemoved(call.incarnation()));
  } else {
    return OnMemberCall(member, message, now, effects);
  }
  effects->sends.push_back(std::move(out));
}

void CoordinatorCore::OnStop(const wire::Stop& stop, const Member* member) {
  const std::string why = Cut(stop.reason(), kReasonBytesMax);
  const bool of_worker = member != nullptr && member->worker_role();
  if (of_worker) totals_.AddTraceback(member->index(), stop.traceback());
  const bool diverged = of_worker && stop.has_diverged();
  wire::JobEnd end =
      JobEndOf(diverged ? wire::JobEnd::DIVERGED : wire::JobEnd::STOPPED, why);
  if (diverged) {
    PutDiverged(stop.diverged(), &end);
  } else if (member != nullptr) {
    PutWho(*member, &end);
  }
  editor_.End(std::move(end));
}

void CoordinatorCore::OnMemberCall(Member* member, const Message& message,
                                   absl::Time now, Effects* effects) {
  const wire::Call& call = message.header.call();
  const GroupStore::Caller caller{.peer = member->peer,
                                  .call_id = call.call_id(),
                                  .incarnation = member->incarnation};
  const auto answer = [&](wire::Code code, const std::string& error = "") {
    effects->sends.push_back(
        AnswerTo(caller.peer, caller.call_id, code, error));
  };
  if (call.has_cut_part()) {
    checkpointer_.OnPart(*member, call.cut_part(), members_.AwakeTime(now));
    return answer(wire::OK);
  }
  if (call.has_inspected()) {
    const wire::Stacks* const stacks = inspections_.OnInspected(
        *member, message, outcome_.Seconds(now), now, effects);
    if (stacks != nullptr)
      stalls_.OnPlace(member->incarnation, stacks->where());
    return;
  }
  if (!member->worker_role() && !call.has_leave()) {
    return answer(wire::REJECTED,
                  absl::StrCat(Describe(*member),
                               " is a server; all it may say is that it "
                               "leaves, what it has of a checkpoint, and what "
                               "it was asked about itself"));
  }
  std::vector<GroupStore::Answer> answers;
  switch (call.kind_case()) {
    case wire::Call::kGather:
      gathers_.Enter(
          *member, call,
          message.payloads.empty() ? Payload() : message.payloads.front(),
          effects);
      news_.workers = true;
      return;
    case wire::Call::kGoesOn:
      gathers_.OnGoesOn(*member, call, effects);
      news_.workers = true;
      return;
    case wire::Call::kStorePut:
      store_.Put(
          caller, call.store_put().group(), call.store_put().key(),
          message.payloads.empty() ? Payload() : message.payloads.front(),
          &answers);
      return Send(std::move(answers), effects);
    case wire::Call::kStoreGet:
      store_.Get(caller, call.store_get().group(), call.store_get().key(),
                 &answers);
      return Send(std::move(answers), effects);
    case wire::Call::kLease: {
      std::vector<LeaseBook::Answer> leased;
      leases_.Ask({.peer = member->peer,
                   .call_id = call.call_id(),
                   .incarnation = member->incarnation},
                  call.lease(), &leased);
      return Send(std::move(leased), effects);
    }
    case wire::Call::kHasExamples: {
      std::vector<LeaseBook::Answer> leased;
      leases_.OnHasExamples({.peer = member->peer,
                             .call_id = call.call_id(),
                             .incarnation = member->incarnation},
                            call.has_examples().clock(), &leased);
      return Send(std::move(leased), effects);
    }
    case wire::Call::kLeave:
      if (call.leave().failure().empty() && !member->worker_role()) {
        if (const std::string why = placement_.WhyMustStay(*member);
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
      return modes_.OnCall(*member, call, effects);
    default:
      return answer(
          wire::REJECTED,
          absl::StrCat("unknown call ", static_cast<int>(call.kind_case())));
  }
}

// ---- For the next coordinator -----------------------------------------------

void CoordinatorCore::KeepView(ViewEditor::Committed committed) {
  if (committed == ViewEditor::Committed::kNothing) return;
  const size_t whole = kept_.BytesOf("view");
  if (committed == ViewEditor::Committed::kChange && kept_changes_ < whole) {
    kept_changes_ += editor_.change().ByteSizeLong();
    return kept_.Put(NumberedKey("change", view().number()), editor_.change());
  }
  for (const std::string& key : kept_.KeysOf("change/")) kept_.Remove(key);
  kept_.Put("view", view());
  kept_changes_ = 0;
}

void CoordinatorCore::Keep(ViewEditor::Committed committed, absl::Time now,
                           Effects* effects) {
  if (!kept_.Has("job")) {
    coordinator::JobState job;
    job.set_job(options_.job);
    job.set_run(options_.run);
    job.set_config_hash(options_.config_hash);
    *job.mutable_build() = options_.build;
    job.set_protocol(options_.protocol);
    if (options_.resume != nullptr) *job.mutable_resume() = *options_.resume;
    job.set_resume_sha256(options_.resume_sha256);
    job.set_resume_folder(options_.resume_folder);
    kept_.Put("job", job);
  }
  KeepView(committed);
  members_.Keep(now, &kept_);
  coordinator::OutcomeState outcome = outcome_.Keep();
  outcome.set_data(data_);
  outcome.set_data_hash(data_hash_);
  kept_.Put("outcome", outcome);
  kept_.Put("modes", modes_.Keep());
  placement_.Keep(&kept_);
  kept_.Put("copies", copies_.Keep());
  coordinator::CheckpointsState checkpoints = checkpointer_.Keep();
  if (suspension_.reason().has_value())
    checkpoints.set_suspends(*suspension_.reason());
  kept_.Put("checkpoints", checkpoints);
  if (user_calls_.TakeNews()) kept_.Put("calls", user_calls_.Keep());
  if (totals_.TakeNews()) kept_.Put("totals", totals_.Keep());
  if (programs_.TakeNews()) kept_.Put("programs", programs_.Keep());
  leases_.Keep(&kept_);
  gathers_.Keep(&kept_);
  std::vector<StateChange> changes = kept_.TakeChanges();
  std::move(changes.begin(), changes.end(), std::back_inserter(effects->state));
}

absl::StatusOr<CoordinatorCore::Kept> CoordinatorCore::KeptIn(
    const CoordinatorState& state) {
  const StateReader reader(state);
  coordinator::JobState job;
  if (!reader.Has("job")) return reader.Broken("job", "it is not there");
  SL_RETURN_IF_ERROR(reader.Read("job", &job));
  Kept kept = {.job = job.job(),
               .run = job.run(),
               .config_hash = job.config_hash(),
               .build = job.build(),
               .protocol = job.protocol(),
               .formed = reader.Has("view"),
               .ended = false,
               .resume = nullptr,
               .resume_sha256 = job.resume_sha256(),
               .resume_folder = job.resume_folder()};
  if (job.has_resume())
    kept.resume = std::make_shared<const checkpoint::Manifest>(job.resume());
  // Perhaps of another version. An end is in changes, too.
  wire::View view;
  SL_RETURN_IF_ERROR(reader.Read("view", &view));
  kept.ended = view.has_end();
  kept.end = view.end();
  SL_RETURN_IF_ERROR(reader.ReadAll<wire::ViewChange>(
      "change", [&](uint64_t, const wire::ViewChange& change) {
        if (change.has_end()) kept.end = change.end();
        kept.ended |= change.has_end();
        return absl::OkStatus();
      }));
  return kept;
}

absl::Status CoordinatorCore::LoadView(const StateReader& reader) {
  if (!reader.Has("view")) {  // The job forms.
    members_.ForEach([&](Member* member) {
      member->founder = true;
      if (member->worker_role()) {
        editor_.PutWorker(WorkerOf(*member));
      } else {
        editor_.PutServer(ServerOf(*member));
      }
    });
    return absl::OkStatus();
  }
  wire::View whole;
  SL_RETURN_IF_ERROR(reader.Read("view", &whole));
  absl::StatusOr<std::shared_ptr<const View>> view =
      View::Create(std::move(whole));
  if (!view.ok())
    return reader.Broken("view", std::string(view.status().message()));
  SL_RETURN_IF_ERROR(reader.ReadAll<wire::ViewChange>(
      "change", [&](uint64_t, const wire::ViewChange& change) {
        view = (*view)->With(change);
        return view.status();
      }));
  editor_ = ViewEditor((*view)->ToProto());
  if (state() == wire::FORMING ||
      (editor_.running() && editor_.view().phase_size() == 0) ||
      (editor_.view().phase_size() > 0 &&
       (editor_.view().entered() < 0 ||
        editor_.view().entered() >= editor_.view().phase_size()))) {
    return reader.Broken("view", "it is none of a job that has begun");
  }
  int listed = 0;
  for (const wire::ServerMember& server : editor_.view().server()) {
    Member* const member = members_.FindServer(server.index());
    if (member == nullptr || member->incarnation != server.incarnation() ||
        member->join.thread_size() != server.thread_size()) {
      continue;
    }
    member->draining = server.draining();
    ++listed;
  }
  for (const wire::WorkerMember& worker : editor_.view().worker()) {
    Member* const member = members_.FindWorker(worker.rank());
    if (member == nullptr || member->incarnation != worker.incarnation())
      continue;
    member->done = worker.done();
    member->trained =
        worker.done() || HasTrained(member->worker.progress(), editor_.view());
    member->founder = worker.founder();
    member->begins_at = worker.begins_at();
    ++listed;
  }
  // The last view still lists those who have left since the job ended.
  const bool all_listed = listed == static_cast<int>(members_.all().size());
  const bool all_kept =
      listed == editor_.view().server_size() + editor_.view().worker_size();
  if (!all_listed || (editor_.running() && !all_kept)) {
    return reader.Broken(
        "view", absl::StrCat("it lists ", editor_.view().server_size(),
                             " servers and ", editor_.view().worker_size(),
                             " workers; ", listed, " of them are among the ",
                             members_.all().size(), " that are kept"));
  }
  return absl::OkStatus();
}

absl::Status CoordinatorCore::Load(const StateReader& reader, absl::Time now,
                                   Effects* effects) {
  SL_RETURN_IF_ERROR(members_.Load(reader, now));
  SL_RETURN_IF_ERROR(LoadView(reader));
  const bool has_run = view().phase_size() > 0;
  if (has_run && !reader.Has("model"))
    return reader.Broken("model", "it is not there");
  coordinator::OutcomeState outcome;
  SL_RETURN_IF_ERROR(reader.Read("outcome", &outcome));
  data_ = outcome.data();
  data_hash_ = outcome.data_hash();
  outcome_.Load(outcome, now);
  coordinator::TotalsState totals;
  SL_RETURN_IF_ERROR(reader.Read("totals", &totals));
  totals_.Load(totals);
  coordinator::ProgramsState programs;
  SL_RETURN_IF_ERROR(reader.Read("programs", &programs));
  programs_.Load(programs);
  coordinator::CallsState calls;
  SL_RETURN_IF_ERROR(reader.Read("calls", &calls));
  SL_RETURN_IF_ERROR(user_calls_.Load(calls));
  SL_RETURN_IF_ERROR(gathers_.Load(reader, [&](Incarnation incarnation) {
    return members_.Find(incarnation) != nullptr;
  }));
  if (!has_run) return absl::OkStatus();
  coordinator::ModesState modes;
  SL_RETURN_IF_ERROR(reader.Read("modes", &modes));
  if (modes.reason_size() != view().phase_size() ||
      (view().has_change() && !modes.has_wanted())) {
    return reader.Broken("modes", "it does not fit the view");
  }
  modes_.Load(modes, effects);
  coordinator::CopiesState copies;
  SL_RETURN_IF_ERROR(reader.Read("copies", &copies));
  copies_.Load(copies);
  SL_RETURN_IF_ERROR(placement_.Load(reader, now));
  coordinator::CheckpointsState checkpoints;
  SL_RETURN_IF_ERROR(reader.Read("checkpoints", &checkpoints));
  const bool waits = checkpoints.under_way() && !checkpoints.has_clocks();
  if (editor_.running() && (modes_.WaitsForCut() != waits ||
                            (modes_.IsCutting() && !checkpoints.under_way()))) {
    return reader.Broken("checkpoints", "they do not fit the cut under way");
  }
  checkpointer_.Load(checkpoints, data_, data_hash_, now);
  if (checkpoints.has_suspends())
    suspension_.Load(checkpoints.suspends(), members_.AwakeTime(now));
  return leases_.Load(view().elastic()
                          ? std::optional(members_.model().elastic())
                          : std::nullopt,
                      reader, [&](Incarnation incarnation) -> const PeerId* {
                        const Member* const member = members_.Find(incarnation);
                        return member == nullptr ? nullptr : &member->peer;
                      });
}

absl::Status CoordinatorCore::Recover(const CoordinatorState& state,
                                      absl::Time now, Effects* effects) {
  Start(now);
  Begin(now);
  const size_t first = effects->sends.size();
  SL_RETURN_IF_ERROR(Load(StateReader(state), now, effects));
  found_by_ = members_.AwakeTime(now) + options_.found_within;
  kept_.Load(state);
  kept_changes_ = kept_.BytesOf("view");  // The next one is whole.
  effects->log.push_back(absl::StrCat(
      "goes on with the job where the coordinator before it was: view ",
      view().number(), ", ", members_.servers().size(), " servers, ",
      members_.workers().size(), " workers"));
  placement_.KeepHost(effects);
  // Its process only reports that.
  if (editor_.ended()) members_.AwaitNoHost();
  // What workers have told each other to connect is lost.
  editor_.Regroup();
  news_.workers = true;
  Conclude(first, now, effects);
  return absl::OkStatus();
}

// ---- Reports ----------------------------------------------------------------

CoordinatorCore::Sizes CoordinatorCore::sizes() const {
  return {.members = members_.all().size(),
          .past_tokens = members_.past_tokens(),
          .store_keys = store_.keys(),
          .store_bytes = store_.bytes(),
          .gathers = gathers_.open(),
          .gathers_bytes = gathers_.bytes(),
          .parked_calls =
              gathers_.waiting() + static_cast<size_t>(store_.waiting()),
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
  summary.set_data(data_);
  summary.set_data_hash(data_hash_);
  programs_.PutSummary(&summary);
  std::vector<RunTotals::Worker> workers;
  std::vector<const run::ServerStats*> servers;
  Clock smallest = EndOf(view());
  for (const auto& [rank, worker] : members_.workers()) {
    workers.push_back({.rank = rank, .stats = &worker->worker});
    smallest = std::min<Clock>(smallest, worker->worker.clock());
  }
  for (const auto& [index, server] : members_.servers())
    servers.push_back(&server->server);
  const int64_t examples = totals_.Put(workers, servers, &summary);
  placement_.PutSummary(&summary);
  copies_.PutSummary(&summary);
  checkpointer_.PutSummary(&summary);
  inspections_.PutSummary(&summary);
  if (options_.resume != nullptr)
    *summary.mutable_resumed_from() = ResumedFrom(options_);
  summary.set_mode_changes(modes_.changes());
  if (workers.empty()) {  // All are gone: what they had done.
    for (const run::WorkerSummary& worker : summary.worker())
      smallest = std::min<Clock>(smallest, worker.steps());
  }
  outcome_.PutSummary(smallest, examples, &summary);
  summary.set_examples_done(leases_.examples_done());
  summary.set_examples_given_again(leases_.examples_given_again());
  const wire::JobEnd& end = view().end();
  summary.set_state(wire::JobState_Name(state()));
  summary.set_cause(wire::JobEnd::Cause_Name(end.cause()));
  summary.set_reason(end.reason());
  if (end.cause() == wire::JobEnd::DIVERGED)
    summary.set_diverged_at_step(end.clock());
  for (const int32_t server : end.server())
    summary.add_about(absl::StrCat("server ", server));
  for (const int32_t worker : end.worker())
    summary.add_about(absl::StrCat("worker ", worker));
  for (const int32_t shard : end.shard())
    summary.add_about(absl::StrCat("shard ", shard));
  return summary;
}

int64_t CoordinatorCore::EpochOfNewcomer() const {
  Clock clock = 0;
  int64_t steps_per_epoch = view().steps_per_epoch();
  if (state() == wire::FORMING && options_.resume != nullptr) {
    clock = options_.resume->clock();
    steps_per_epoch = options_.resume->steps_per_epoch();
  } else if (state() == wire::RUNNING && view().elastic()) {
    return leases_.next_epoch();
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
  const auto about = [&](const Member& member, auto* stats) {
    stats->set_incarnation(member.incarnation);
    stats->set_alive(true);
    stats->set_pid(member.join.pid());
    stats->set_heard_ms_ago(absl::ToInt64Milliseconds(now - member.heard));
  };
  for (const auto& [incarnation, member] : members_.all()) {
    if (member.worker_role()) {
      run::WorkerStats& worker = *status.add_worker();
      worker = member.worker;
      worker.set_rank(member.index());
      worker.set_done(member.done);
      about(member, &worker);
    } else {
      run::ServerStats& server = *status.add_server();
      server = member.server;
      server.set_index(member.index());
      about(member, &server);
    }
  }
  if (state() == wire::FORMING) {
    const Membership::Missing missing = members_.WhoIsMissing();
    for (const std::string& name : members_.NamesOf(missing))
      status.add_missing(name);
    for (const std::string& why : members_.WhyMissing(missing))
      status.add_held_up(why);
    for (const std::string& left : links_.Left(members_.AwakeTime(now)))
      status.add_held_up(left);
  }
  status.set_next_server(members_.next_server());
  status.set_coordinator_server(options_.host_server);
  status.set_epoch(EpochOfNewcomer());
  outcome_.PutStatus(now, &status);
  placement_.PutStatus(moves_known, &status);
  copies_.PutStatus(&status);
  modes_.PutStatus(now, &status);
  checkpointer_.PutStatus(members_.AwakeTime(now), &status);
  for (const std::string& sentence : held_up_) status.add_held_up(sentence);
  stragglers_.PutStatus(&status);
  inspections_.PutStatus(&status);
  std::vector<const run::ServerStats*> servers;
  for (const auto& [index, server] : members_.servers())
    servers.push_back(&server->server);
  *status.mutable_refused() = totals_.Refused(servers);
  return status;
}

}  // namespace slackline
