#include "worker/session/worker_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/net/shard_endpoint.h"
#include "common/status.h"
#include "common/thread_name.h"
#include "common/timeline/message_event.h"

namespace slackline {
namespace {

// After it was given something to do, the trainer thread may be back to wait
// within this time. Longer steps do not notice what a hand-over costs.
constexpr absl::Duration kMayComeBack = absl::Milliseconds(1);
// More payload is copied, or encoded, beside what the sender does next.
constexpr size_t kSmallBytes = 64 << 10;
// Probes look much less often.
constexpr absl::Duration kTellHealthEvery = absl::Milliseconds(100);

PeerId SelfForCoordinator(const wire::JoinRequest& join) {
  return {.kind = PeerId::Kind::kWorker,
          .index = join.index(),
          .instance = join.token()};
}

PeerId SelfForTrial(const wire::JoinRequest& join) {
  return {.kind = PeerId::Kind::kObserver,
          .index = join.index(),
          .instance = join.token()};
}

WorkerCore::Options CoreOptions(const WorkerLoop::Options& options) {
  WorkerCore::Options core = options.core;
  core.client.by_socket = [self = LocalProcess(), via = options.transport](
                              const View& view, Owner to) {
    const wire::ServerMember* const server = view.FindServer(to.server);
    return server != nullptr && to.thread < server->thread_size() &&
           IsBySocket(*server, to.thread, self, via);
  };
  return core;
}

HealthBoard::Look LookOf(const WorkerCore& core, absl::Time now) {
  const run::WorkerProgress progress = core.Progress(now);
  HealthBoard::Look look = {.clock = progress.clock(),
                            .doing = progress.what()};
  const std::shared_ptr<const View>& view = core.view();
  const wire::JobState state =
      view == nullptr ? wire::FORMING : view->proto().state();
  if (!core.ending().ok() || core.ended() || state == wire::FINISHED ||
      state == wire::FAILED) {
    look.stage = HealthStage::kEnding;
  } else if (state == wire::RUNNING &&
             progress.activity() != run::WorkerProgress::ACTIVITY_UNSPECIFIED) {
    look.stage = HealthStage::kTakingPart;
  }
  // Nobody waits for what a program does after its last step, for now.
  if (progress.activity() == run::WorkerProgress::WORKING &&
      !core.has_trained())
    look.still_since = now - absl::Milliseconds(progress.for_ms());
  return look;
}

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerLoop>> WorkerLoop::Start(
    Transport& to_coordinator, Transport& to_shard_threads,
    const Options& options, std::unique_ptr<Listener> door) {
  std::unique_ptr<WorkerLoop> loop(
      new WorkerLoop(to_coordinator, to_shard_threads, options));
  SL_RETURN_IF_ERROR(loop->ConnectTo(options.core.member.coordinators.front()));
  loop->poller_.Add(loop->waker_);
  if (door != nullptr) loop->trial_.Open(std::move(door));
  loop->HandleInTurn(
      [](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.Start(now, effects);
      });
  loop->thread_ = std::thread(&WorkerLoop::Run, loop.get());
  return loop;
}

WorkerLoop::WorkerLoop(Transport& to_coordinator, Transport& to_shard_threads,
                       const Options& options)
    : options_(options),
      to_coordinator_transport_(to_coordinator),
      poller_(options.wait),
      shard_threads_(to_shard_threads, poller_, options.transport),
      trial_(to_coordinator, poller_, options.transport,
             SelfForTrial(options.core.member.join)),
      core_(CoreOptions(options)),
      inspector_(options.inspection) {}

absl::Status WorkerLoop::ConnectTo(const std::string& coordinator) {
  if (coordinator_ != nullptr) poller_.Remove(*coordinator_);
  SL_ASSIGN_OR_RETURN(coordinator_,
                      to_coordinator_transport_.Connect(
                          SelfForCoordinator(options_.core.member.join),
                          coordinator, {.watch_link = true}));
  poller_.Add(*coordinator_);
  return absl::OkStatus();
}

WorkerLoop::~WorkerLoop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    turn_.changed.notify_one();
  }
  waker_.Wake();
  thread_.join();
}

// ---- Under the mutex --------------------------------------------------------

void WorkerLoop::AbortIfGroupIsOver() {
  if (!abort_) return;
  const absl::Status why = core_.WhyGroupIsOver(abort_group_);
  if (!why.ok()) abort_(why);
}

void WorkerLoop::Take(WorkerCore::Effects* effects) {
  for (const std::string& line : effects->log) spdlog::info(line);
  for (const std::string& line : effects->warnings) spdlog::warn(line);
  if (effects->look_at.has_value()) outbox_.look_at = effects->look_at;
  if (effects->try_links.has_value())
    try_links_ = std::move(effects->try_links);
  std::move(effects->to_coordinator.begin(), effects->to_coordinator.end(),
            std::back_inserter(outbox_.to_coordinator));
  std::move(effects->to_shards.begin(), effects->to_shards.end(),
            std::back_inserter(outbox_.to_shards));
  if (effects->view != nullptr) outbox_.view = effects->view;
  for (const wire::Inspection& inspection : effects->inspections)
    inspector_.Ask(inspection, Now());
  if (effects->view != nullptr &&
      (effects->view->proto().state() == wire::FINISHED ||
       effects->view->proto().state() == wire::FAILED)) {
    inspector_.End();
    AnswerInspections();
  }
  // Waking a thread costs more than everything else here.
  using Need = WorkerCore::Need;
  const bool news = need_ == Need::kRoom ||
                    (need_ == Need::kParameters && !effects->tables.empty()) ||
                    effects->state != nullptr || !effects->answers.empty() ||
                    !effects->actions.empty() || !core_.ending().ok();
  for (MemberCore::CallResult& answer : effects->answers) {
    const auto call = calls_.find(answer.call_id);
    if (call != calls_.end()) call->second = std::move(answer);
  }
  for (TableValues& values : effects->tables)
    tables_[values.table] = std::move(values);
  if (effects->state != nullptr) state_ = std::move(effects->state);
  for (WorkerCore::Action& action : effects->actions)
    actions_.Add(std::move(action));
  AbortIfGroupIsOver();
  if (!news) return;
  changed_.notify_all();
  turn_.told_news = true;
  // The trainer thread may wait for it in the turn that it has.
  if (!turn_.IsFree() && !turn_.IsOurs()) waker_.Wake();
}

void WorkerLoop::AnswerInspections() {
  const absl::Time now = Now();
  for (Inspector::Answer& answer : inspector_.TakeAnswers(now)) {
    WorkerCore::Effects effects;
    core_.AnswerInspection(std::move(answer.inspected), std::move(answer.frame),
                           now, &effects);
    std::move(effects.to_coordinator.begin(), effects.to_coordinator.end(),
              std::back_inserter(outbox_.to_coordinator));
  }
}

// ---- The turn ---------------------------------------------------------------

void WorkerLoop::SendSoon() {
  if (!turn_.IsFree()) {
    if (!turn_.IsOurs()) waker_.Wake();
    return;
  }
  size_t bytes = 0;
  for (const ClientSend& send : outbox_.to_shards) {
    for (const Payload& payload : send.message.payloads)
      bytes += payload.size();
  }
  if (bytes > kSmallBytes) {
    turn_.comm_wanted = true;
    turn_.changed.notify_one();
    return;
  }
  turn_.Take();
  {
    const MutexRelease meanwhile(mutex_);
    SendAll();
  }
  turn_.GiveBack();
}

void WorkerLoop::WaitForChange(MutexLock& lock) {
  if (broken_ || (!turn_.IsFree() && !turn_.IsOurs()))
    return lock.Wait(changed_);
  if (!turn_.IsOurs()) {
    turn_.Take();
    ++turn_.trainer_turns;
  }
  bool drives;
  {
    const MutexRelease meanwhile(mutex_);
    drives = Drive();
  }
  broken_ |= !drives;
}

void WorkerLoop::EndWait() {
  if (turn_.IsOurs()) turn_.GiveBack();
}

void WorkerLoop::Run() {
  NameThisThread("communication");
  MutexLock lock(mutex_);
  int64_t seen = turn_.trainer_turns;
  while (!stopping_ && !broken_) {
    const bool trainer_was_here = seen != turn_.trainer_turns;
    if (turn_.IsFree() &&
        (turn_.comm_wanted || (!turn_.told_news && !trainer_was_here))) {
      turn_.Take();
      lock.Unlock();
      const bool drives = Drive();
      lock.Lock();
      broken_ |= !drives;
      turn_.GiveBack();
    } else if (!turn_.IsFree() && !trainer_was_here) {
      // It has waited for long, and says when that ends.
      turn_.comm_rests = true;
      lock.Wait(turn_.changed);
      turn_.comm_rests = false;
      turn_.told_news = true;
    } else {
      // Whoever has got something to do may be back soon; and who still waits,
      // and was told of something else, sees that the turn is free.
      seen = turn_.trainer_turns;
      turn_.told_news = false;
      changed_.notify_all();
      lock.WaitUntil(turn_.changed, SteadyDeadline(kMayComeBack));
    }
  }
  changed_.notify_all();  // If it is broken, nobody is told anything any more.
  lock.Unlock();
  if (options_.health != nullptr)
    options_.health->Looked({.stage = HealthStage::kEnding}, Now());
  poller_.Remove(waker_);
  poller_.Remove(*coordinator_);
}

void WorkerLoop::TellHealth() {
  if (options_.health == nullptr || Now() < next_health_) return;
  const absl::Time now = Now();
  next_health_ = now + kTellHealthEvery;
  HealthBoard::Look look;
  auto stats = std::make_shared<run::WorkerStats>();
  {
    const MutexLock lock(mutex_);
    look = LookOf(core_, now);
    *stats = core_.Stats(now);
  }
  options_.health->Looked(std::move(look), now);
  options_.health->Counted(
      std::shared_ptr<const run::WorkerStats>(std::move(stats)));
}

bool WorkerLoop::Drive() {
  SendAll();
  absl::Time wake;
  {
    const MutexLock lock(mutex_);
    wake = std::min(core_.NextWakeup(), inspector_.NextWakeup(Now()));
    // The last messages have gone out; until the end comes there is no more.
    if (core_.ended()) wake = absl::InfiniteFuture();
    if (stopping_) wake = absl::InfinitePast();
  }
  if (const absl::Status waited =
          poller_.Wait(std::max(wake - Now(), absl::ZeroDuration()));
      !waited.ok()) {
    Fail(waited);
    return false;
  }
  waker_.Drain();
  SendAll();
  ReceiveFromCoordinator();
  BeginTrial();
  ReceiveFromShardThreads();
  LookAtTrial();
  {
    const MutexLock lock(mutex_);
    AnswerInspections();
  }
  HandleInTurn([](WorkerCore& core, absl::Time now,
                  WorkerCore::Effects* effects) { core.OnTick(now, effects); });
  SendAll();
  TellHealth();
  return true;
}

// ---- Trainer thread ---------------------------------------------------------

std::unique_ptr<const WorkerCore::Action> WorkerLoop::Next() {
  MutexLock lock(mutex_);
  while (!core_.ended() && !broken_ &&
         (!core_.ending().ok() || actions_.empty())) {
    WaitForChange(lock);
  }
  EndWait();
  if (core_.ended() || broken_) return nullptr;
  return actions_.Take();
}

void WorkerLoop::PutBack(std::unique_ptr<const WorkerCore::Action> action) {
  const MutexLock lock(mutex_);
  actions_.PutBack(std::move(action));
}

void WorkerLoop::OnStepOver() {
  const MutexLock lock(mutex_);
  actions_.OnStepOver();
}

ActionLine::AtGather WorkerLoop::NextAtGather() {
  const MutexLock lock(mutex_);
  return actions_.NextAtGather(core_);
}

absl::Status WorkerLoop::Push(TableId table, const CodedGradient& gradient,
                              const StepOptions& options) {
  MutexLock lock(mutex_);
  WaitUntil(lock, WorkerCore::Need::kRoom,
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
              return core_.HasRoom(gradient.bytes.size());
            });
  if (!core_.ending().ok()) return core_.ending();
  WorkerCore::Effects effects;
  const absl::Status pushed =
      core_.OnGradient(table, gradient, options, Now(), &effects);
  Take(&effects);
  SL_RETURN_IF_ERROR(pushed);
  if (HasNews()) SendSoon();
  return absl::OkStatus();
}

absl::Status WorkerLoop::SkipTable(TableId table) {
  const MutexLock lock(mutex_);
  if (!core_.ending().ok()) return core_.ending();
  WorkerCore::Effects effects;
  const absl::Status skipped = core_.OnSkippedTable(table, Now(), &effects);
  Take(&effects);
  SL_RETURN_IF_ERROR(skipped);
  if (HasNews()) SendSoon();
  return absl::OkStatus();
}

absl::StatusOr<TableValues> WorkerLoop::WaitForTable(TableId table) {
  MutexLock lock(mutex_);
  WaitUntil(lock, WorkerCore::Need::kParameters,
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
              return tables_.count(table) > 0;
            });
  if (!core_.ending().ok()) return core_.ending();
  return std::move(tables_.extract(table).mapped());
}

absl::StatusOr<WorkerCore::Parameters> WorkerLoop::AskState(StateParts what) {
  bool may_ask = false;
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    may_ask = core.client() != nullptr && core.ending().ok();
    if (may_ask) core.AskState(what, now, effects);
  });
  MutexLock lock(mutex_);
  if (!core_.ending().ok()) return core_.ending();
  if (!may_ask)
    return absl::FailedPreconditionError("the worker has not joined yet");
  WaitUntil(lock, WorkerCore::Need::kState,
            [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
              return state_ != nullptr;
            });
  if (!core_.ending().ok()) return core_.ending();
  return std::exchange(state_, nullptr);
}

absl::Status WorkerLoop::Sleep(absl::Duration time) {
  const auto end = SteadyDeadline(time);
  MutexLock lock(mutex_);
  while (core_.ending().ok() && lock.WaitUntil(changed_, end)) {
  }
  return core_.ending();
}

// ---- Any thread -------------------------------------------------------------

uint64_t WorkerLoop::StartCall(wire::Call call, Payload value) {
  uint64_t id = 0;
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects)
           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
             id = core.Call(std::move(call), std::move(value), now, effects);
             calls_[id] = std::nullopt;
           });
  return id;
}

absl::StatusOr<MemberCore::CallResult> WorkerLoop::WaitCall(
    uint64_t call, absl::Duration wait_max) {
  const auto end = SteadyDeadline(wait_max);
  MutexLock lock(mutex_);
  while (core_.ending().ok() && !calls_.at(call).has_value() &&
         lock.WaitUntil(changed_, end)) {
  }
  // An answer that has come counts, even if the end came after it.
  if (!calls_.at(call).has_value()) {
    if (!core_.ending().ok()) return core_.ending();
    return absl::DeadlineExceededError(
        absl::StrCat("waited ", absl::ToInt64Milliseconds(wait_max),
                     " ms for an answer of the coordinator"));
  }
  MemberCore::CallResult result = *std::move(calls_.at(call));
  calls_.erase(call);
  if (result.reply.code() != wire::OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator refused a call: ", result.reply.error()));
  }
  return result;
}

void WorkerLoop::ForgetCall(uint64_t call) {
  const MutexLock lock(mutex_);
  core_.CancelCall(call);
  calls_.erase(call);
}

std::string WorkerLoop::ObstacleOf(uint64_t call) const {
  const MutexLock lock(mutex_);
  return core_.ObstacleOf(call);
}

absl::StatusOr<MemberCore::CallResult> WorkerLoop::Call(
    wire::Call call, Payload value, absl::Duration wait_max) {
  const uint64_t id = StartCall(std::move(call), std::move(value));
  absl::StatusOr<MemberCore::CallResult> result = WaitCall(id, wait_max);
  if (!result.ok()) ForgetCall(id);
  return result;
}

absl::Time WorkerLoop::Now() const { return options_.time.Now(); }

absl::Status WorkerLoop::ending() const {
  const MutexLock lock(mutex_);
  return core_.ending();
}

std::shared_ptr<const View> WorkerLoop::view() const {
  const MutexLock lock(mutex_);
  return core_.view();
}

absl::Status WorkerLoop::WhyGroupIsOver(uint64_t group) const {
  const MutexLock lock(mutex_);
  return core_.WhyGroupIsOver(group);
}

void WorkerLoop::AddRecord(const run::MetricRecord& record,
                           absl::Time made_at) {
  MutexLock lock(mutex_);
  Handle([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    core.AddRecord(record, made_at);
  });
  // It may have to leave before anything else is due.
  if (!turn_.IsFree()) waker_.Wake();
}

void WorkerLoop::Fail(const absl::Status& why) {
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Fail(why, now, effects);
  });
}

void WorkerLoop::Suspend(const std::string& reason) {
  Tell([&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.Suspend(reason, now, effects);
  });
}

void WorkerLoop::Interrupt(const std::string& reason) {
  Fail(absl::CancelledError(reason));
}

void WorkerLoop::SetAbort(uint64_t group,
                          std::function<void(const absl::Status&)> abort) {
  const MutexLock lock(mutex_);
  abort_group_ = group;
  abort_ = std::move(abort);
  AbortIfGroupIsOver();
}

// ---- In the turn ------------------------------------------------------------

void WorkerLoop::FollowServers(std::shared_ptr<const View> view) {
  const int32_t rank = options_.core.member.join.index();
  const wire::WorkerMember* const member = view->FindWorker(Rank{rank});
  if (member == nullptr) return;
  incarnation_ = member->incarnation();
  shard_threads_.Follow(
      {.kind = PeerId::Kind::kWorker, .index = rank, .instance = incarnation_},
      std::move(view));
}

void WorkerLoop::SendAll() {
  Outbox out;
  {
    const MutexLock lock(mutex_);
    std::swap(out, outbox_);
  }
  if (out.look_at.has_value()) {
    const absl::Status connected =
        ConnectTo(options_.core.member.coordinators[*out.look_at]);
    if (!connected.ok()) return Fail(connected);
  }
  for (const Message& message : out.to_coordinator)
    (void)coordinator_->Send(message);
  if (out.view != nullptr) trial_.End();
  if (out.view != nullptr && out.view->proto().state() == wire::RUNNING)
    FollowServers(std::move(out.view));
  for (const ClientSend& send : out.to_shards) {
    const bool recorded = IsOn(options_.track);
    const absl::Time begun = recorded ? Now() : absl::Time();
    const absl::Status sent = shard_threads_.Send(send.to, send.message);
    if (recorded) {
      options_.track->Add(EventOf(send.message, MessageEnd::kWorker,
                                  incarnation_, begun, Now()));
    }
    if (!sent.ok()) Fail(sent);
  }
}

void WorkerLoop::BeginTrial() {
  std::optional<wire::TryLinks> links;
  {
    const MutexLock lock(mutex_);
    links.swap(try_links_);
  }
  if (links.has_value()) trial_.Begin(*links);
}

void WorkerLoop::LookAtTrial() {
  const std::optional<wire::LinksTried> tried = trial_.Look();
  if (!tried.has_value()) return;
  HandleInTurn(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnLinks(*tried, now, effects);
      });
}

void WorkerLoop::ReceiveFromCoordinator() {
  const absl::StatusOr<std::optional<LinkState>> link =
      coordinator_->ReceiveLinkState();
  if (!link.ok()) return Fail(link.status());
  if (link->has_value()) {
    HandleInTurn([&](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.OnLink(**link, now);
    });
  }
  while (true) {
    absl::StatusOr<std::optional<Message>> message = coordinator_->Receive();
    if (!message.ok()) return Fail(message.status());
    if (!message->has_value()) return;
    HandleInTurn(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.OnCoordinatorMessage(**message, now, effects);
        });
  }
}

void WorkerLoop::ReceiveFromShardThreads() {
  const absl::Status received =
      shard_threads_.Receive([&](Owner from, Message& message) {
        const bool recorded = IsOn(options_.track);
        const absl::Time begun = recorded ? Now() : absl::Time();
        HandleInTurn([&](WorkerCore& core, absl::Time now,
                         WorkerCore::Effects* effects) {
          core.OnShardMessage(from, message, now, effects);
        });
        if (recorded) {
          options_.track->Add(EventOf(message, MessageEnd::kWorker,
                                      incarnation_, begun, Now()));
        }
      });
  if (!received.ok()) Fail(received);
}

}  // namespace slackline
