#include "worker/client/ps_client.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "common/net/host_id.h"
#include "common/net/shard_endpoint.h"
#include "common/status.h"

namespace slackline {
namespace {

PeerId SelfForCoordinator(const wire::JoinRequest& join) {
  return {.kind = PeerId::Kind::kWorker,
          .index = join.index(),
          .instance = join.token()};
}

size_t BytesOf(const Message& message) {
  size_t bytes = message.header.ByteSizeLong();
  for (const Payload& payload : message.payloads) bytes += payload.size();
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsClient>> PsClient::Start(
    NetContext& context, const Options& options) {
  SL_ASSIGN_OR_RETURN(
      std::unique_ptr<DealerSocket> coordinator,
      DealerSocket::Create(context, SelfForCoordinator(options.member.join)));
  SL_RETURN_IF_ERROR(coordinator->Connect(options.coordinator_endpoint));
  std::unique_ptr<PsClient> client(
      new PsClient(context, options, std::move(coordinator)));
  client->thread_ = std::thread(&PsClient::Run, client.get());
  return client;
}

PsClient::PsClient(NetContext& context, const Options& options,
                   std::unique_ptr<DealerSocket> coordinator)
    : context_(context),
      options_(options),
      member_(options.member),
      coordinator_(std::move(coordinator)) {
  if (!options_.link.has_value()) return;
  lines_.emplace(Lines{.out = DelayLine<ClientCore::Send>(*options_.link),
                       .in = DelayLine<Received>(*options_.link)});
}

PsClient::~PsClient() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  waker_.Wake();
  thread_.join();
}

// ---- Trainer thread ---------------------------------------------------------

void PsClient::Post(std::function<void()> command) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands_.push_back(std::move(command));
  }
  waker_.Wake();
}

absl::Status PsClient::WaitUntil(std::unique_lock<std::mutex>& lock,
                                 absl::Duration wait_max,
                                 const std::string& what,
                                 const std::function<bool()>& done) {
  const bool in_time =
      changed_.wait_for(lock, absl::ToChronoNanoseconds(wait_max),
                        [&] { return done() || !failure_.ok(); });
  if (!failure_.ok()) return failure_;
  if (in_time) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      "waited ", absl::ToInt64Milliseconds(wait_max), " ms for ", what,
      waiting_for_.empty() ? "" : absl::StrCat(": ", waiting_for_),
      "; look at the log of whoever is waited for, or raise limits "
      "{ wait_timeout_ms: ... }"));
}

absl::Status PsClient::Sleep(absl::Duration time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, absl::ToChronoNanoseconds(time),
                    [&] { return !failure_.ok(); });
  return failure_;
}

absl::StatusOr<std::shared_ptr<const View>> PsClient::WaitForView(
    const std::function<bool(const View&)>& accept, const std::string& what,
    absl::Duration wait_max) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto finished = [&] {
    return view_ != nullptr && view_->proto().state() == wire::FINISHED;
  };
  const absl::Status waited = WaitUntil(lock, wait_max, what, [&] {
    return finished() || (view_ != nullptr && accept(*view_));
  });
  if (!waited.ok() && !finished()) return waited;
  return view_;
}

absl::StatusOr<std::shared_ptr<const View>> PsClient::WaitUntilRunning() {
  // The coordinator ends the wait: it names who is missing.
  return WaitForView(
      [](const View& view) { return view.proto().state() == wire::RUNNING; },
      "all members to join",
      options_.member.start_timeout * 2 + absl::Seconds(10));
}

absl::StatusOr<PsClient::Joined> PsClient::JoinShards() {
  Post([this] { client_->JoinPull(absl::Now(), &client_effects_); });
  SL_ASSIGN_OR_RETURN(PullResult parameters, WaitPull());
  const auto joined = std::make_shared<PullResult>(std::move(parameters));
  Post([this, joined] {
    const Clock start =
        client_->StartAt(*joined, absl::Now(), &client_effects_);
    const std::lock_guard<std::mutex> lock(mutex_);
    start_clock_ = start;
    changed_.notify_all();
  });
  std::unique_lock<std::mutex> lock(mutex_);
  SL_RETURN_IF_ERROR(WaitUntil(lock, options_.wait_timeout, "the start clock",
                               [&] { return start_clock_.has_value(); }));
  return Joined{.start = *start_clock_, .parameters = *joined};
}

absl::Status PsClient::Push(
    Clock clock, TableId table, Payload gradient,
    std::shared_ptr<const std::vector<Version>> base_versions) {
  const size_t bytes = gradient.size();
  {
    std::unique_lock<std::mutex> lock(mutex_);
    SL_RETURN_IF_ERROR(
        WaitUntil(lock, options_.wait_timeout, "room to push", [&] {
          return unacknowledged_bytes_ == 0 ||
                 unacknowledged_bytes_ + bytes <=
                     options_.unacknowledged_bytes_max;
        }));
    unacknowledged_bytes_ += bytes;
    posted_bytes_ += bytes;
  }
  Post([this, clock, table, bytes, gradient = std::move(gradient),
        versions = std::move(base_versions)] {
    const absl::Status pushed = client_->Push(clock, table, gradient, *versions,
                                              absl::Now(), &client_effects_);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      posted_bytes_ -= bytes;
    }
    if (!pushed.ok()) Fail(pushed);
  });
  return absl::OkStatus();
}

absl::Status PsClient::SkipTo(Clock clock) {
  Post(
      [this, clock] { client_->SkipTo(clock, absl::Now(), &client_effects_); });
  return failure();
}

absl::Status PsClient::StartPull(Clock clock, Clock own_clock) {
  Post([this, clock, own_clock] {
    client_->Pull(clock, own_clock, absl::Now(), &client_effects_);
  });
  return failure();
}

absl::Status PsClient::StartPullState(Clock clock) {
  Post([this, clock] {
    client_->PullState(clock, absl::Now(), &client_effects_);
  });
  return failure();
}

absl::Status PsClient::Install(Clock clock,
                               std::vector<ClientCore::InstalledShard> shards) {
  size_t bytes = 0;
  for (const ClientCore::InstalledShard& shard : shards) {
    bytes += shard.state.values.size() * (1 + shard.state.slots.size());
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    unacknowledged_bytes_ += bytes;
    posted_bytes_ += bytes;
  }
  Post([this, clock, bytes, shards = std::move(shards)]() mutable {
    client_->Install(clock, std::move(shards), absl::Now(), &client_effects_);
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_bytes_ -= bytes;
  });
  return failure();
}

absl::StatusOr<PsClient::PullResult> PsClient::WaitPull() {
  std::unique_lock<std::mutex> lock(mutex_);
  SL_RETURN_IF_ERROR(WaitUntil(lock, options_.wait_timeout, "parameters",
                               [&] { return pulled_.has_value(); }));
  PullResult result = *std::move(pulled_);
  pulled_.reset();
  return result;
}

absl::StatusOr<std::optional<PsClient::PullResult>> PsClient::WaitPullOrView(
    uint64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  SL_RETURN_IF_ERROR(WaitUntil(lock, options_.wait_timeout, "parameters", [&] {
    return pulled_.has_value() || view_->number() != number;
  }));
  return std::exchange(pulled_, std::nullopt);
}

absl::Status PsClient::WaitPushed() {
  std::unique_lock<std::mutex> lock(mutex_);
  return WaitUntil(lock, options_.wait_timeout, "pushes to be acknowledged",
                   [&] { return unacknowledged_bytes_ == 0; });
}

absl::StatusOr<MemberCore::CallResult> PsClient::Call(wire::Call call,
                                                      Payload value,
                                                      absl::Duration wait_max) {
  return WaitCall(*StartCall(std::move(call), std::move(value)), wait_max);
}

std::shared_ptr<const PsClient::PendingCall> PsClient::StartCall(
    wire::Call call, Payload value) {
  auto pending = std::make_shared<PendingCall>();
  Post([this, pending, call = std::move(call),
        value = std::move(value)]() mutable {
    const uint64_t call_id = member_.Call(std::move(call), std::move(value),
                                          absl::Now(), &member_effects_);
    const std::lock_guard<std::mutex> lock(mutex_);
    pending->id = call_id;
  });
  return pending;
}

absl::StatusOr<MemberCore::CallResult> PsClient::WaitCall(
    const PendingCall& call, absl::Duration wait_max) {
  std::unique_lock<std::mutex> lock(mutex_);
  SL_RETURN_IF_ERROR(WaitUntil(
      lock, wait_max, "an answer of the coordinator",
      [&] { return call.id.has_value() && answers_.count(*call.id) > 0; }));
  MemberCore::CallResult result = std::move(answers_.at(*call.id));
  answers_.erase(*call.id);
  if (result.reply.code() != wire::OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator refused a call: ", result.reply.error()));
  }
  return result;
}

void PsClient::Notify(wire::Call call) {
  Post([this, call = std::move(call)]() mutable {
    unheeded_.insert(member_.Call(std::move(call), Payload(), absl::Now(),
                                  &member_effects_));
  });
}

// ---- Any thread -------------------------------------------------------------

std::shared_ptr<const View> PsClient::view() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return view_;
}

void PsClient::SetStats(const run::WorkerStats& stats) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stats_ = stats;
}

void PsClient::AddRecord(const run::MetricRecord& record, absl::Time made_at) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_.emplace_back(record, made_at);
  }
  waker_.Wake();
}

void PsClient::Interrupt(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    interrupt_reason_ = reason;
  }
  waker_.Wake();
}

void PsClient::SetHandlers(std::function<void(const absl::Status&)> on_failure,
                           ViewHandler on_view) {
  std::vector<wire::Call> calls;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_handler_ = std::move(on_failure);
    view_handler_ = std::move(on_view);
    if (failure_handler_ && !failure_.ok()) failure_handler_(failure_);
    if (view_handler_ && view_ != nullptr) calls = view_handler_(*view_);
  }
  for (wire::Call& call : calls) Notify(std::move(call));
}

absl::Status PsClient::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

// ---- Communication thread

void PsClient::Fail(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!failure_.ok()) return;
  failure_ = status;
  changed_.notify_all();
  // Under the mutex, so that clearing the handler waits for it.
  if (failure_handler_) failure_handler_(failure_);
}

void PsClient::RunCommands() {
  std::vector<std::function<void()>> commands;
  std::optional<std::string> interrupt;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    commands.swap(commands_);
    if (!leaving_) interrupt = interrupt_reason_;
    for (const auto& [record, made_at] : records_)
      member_.AddRecord(record, made_at);
    records_.clear();
  }
  for (const std::function<void()>& command : commands) command();
  if (interrupt.has_value()) {
    leaving_ = true;
    if (member_.incarnation() != 0) {
      wire::Call call;
      call.mutable_leave()->set_failure(*interrupt);
      member_.Call(call, Payload(), absl::Now(), &member_effects_);
    }
    Fail(absl::CancelledError(*interrupt));
  }
}

absl::Status PsClient::FollowServers(const View& view) {
  std::erase_if(shard_threads_, [&](const auto& entry) {
    const wire::ServerMember* const server =
        view.FindServer(entry.first.server);
    if (server != nullptr && server->incarnation() == entry.second.server)
      return false;
    poller_.Remove(*entry.second.socket);
    return true;
  });
  const PeerId self{.kind = PeerId::Kind::kWorker,
                    .index = options_.member.join.index(),
                    .instance = member_.incarnation()};
  const std::string host_id = HostId();
  for (const wire::ServerMember& server : view.proto().server()) {
    for (int t = 0; t < server.thread_size(); ++t) {
      const Owner owner{.server = server.index(), .thread = t};
      if (shard_threads_.count(owner) > 0) continue;
      SL_ASSIGN_OR_RETURN(
          const std::string endpoint,
          ShardEndpoint(server, t, host_id, options_.transport));
      SL_ASSIGN_OR_RETURN(std::unique_ptr<DealerSocket> socket,
                          DealerSocket::Create(context_, self));
      SL_RETURN_IF_ERROR(socket->Connect(endpoint));
      poller_.Add(*socket);
      shard_threads_[owner] = {.server = server.incarnation(),
                               .socket = std::move(socket)};
    }
  }
  return absl::OkStatus();
}

void PsClient::PerformMember() {
  // Performing may cause new effects: a view makes a heartbeat due.
  while (true) {
    MemberCore::Effects effects;
    std::swap(effects, member_effects_);
    for (const Message& message : effects.sends)
      (void)coordinator_->Send(message);
    if (effects.view != nullptr) {
      const wire::View& proto = effects.view->proto();
      if (proto.state() == wire::RUNNING) {
        if (const absl::Status connected = FollowServers(*effects.view);
            !connected.ok()) {
          Fail(connected);
        }
        if (!client_.has_value()) {
          ClientCore::Options options;
          options.rank = Rank{options_.member.join.index()};
          options.incarnation = member_.incarnation();
          options.window_bytes = options_.window_bytes;
          options.message_bytes = options_.message_bytes;
          options.slot_count = options_.slot_count;
          options.retry_initial = RetryInitial(*effects.view);
          options.retry_max =
              std::max(options.retry_max, options.retry_initial);
          client_.emplace(options, effects.view);
        } else {
          client_->OnView(effects.view, absl::Now(), &client_effects_);
        }
      }
      std::vector<wire::Call> calls;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        view_ = effects.view;
        FillStats();
        changed_.notify_all();
        if (view_handler_) calls = view_handler_(*view_);
      }
      for (wire::Call& call : calls) {
        unheeded_.insert(member_.Call(std::move(call), Payload(), absl::Now(),
                                      &member_effects_));
      }
      if (proto.state() != wire::RUNNING) {
        member_.SendHeartbeat(absl::Now(), &member_effects_);
        if (proto.state() == wire::FAILED) {
          Fail(absl::FailedPreconditionError(proto.reason()));
        } else if (proto.state() == wire::FINISHED) {
          Fail(absl::OutOfRangeError(
              absl::StrCat("the job has finished: ", proto.reason())));
        }
      }
    }
    for (MemberCore::CallResult& answer : effects.answers) {
      if (unheeded_.erase(answer.call_id) > 0) {
        if (answer.reply.code() == wire::OK) continue;
        spdlog::warn("the coordinator refused a notice: {}",
                     answer.reply.error());
        continue;
      }
      const std::lock_guard<std::mutex> lock(mutex_);
      answers_[answer.call_id] = std::move(answer);
      changed_.notify_all();
    }
    if (effects.fenced && !leaving_) {
      Fail(
          absl::AbortedError("the lease of this worker ran out although it "
                             "runs; was it paused or cut off?"));
    }
    if (!effects.failure.ok()) Fail(effects.failure);
    if (member_effects_.sends.empty()) return;
  }
}

void PsClient::FillStats() {
  if (client_.has_value()) {
    stats_.set_bytes_pushed(client_->bytes_pushed());
    stats_.set_bytes_pulled(client_->bytes_pulled());
    stats_.set_retries(client_->retries());
  }
  member_.SetStats(stats_);
}

void PsClient::PerformClient() {
  ClientCore::Effects effects;
  std::swap(effects, client_effects_);
  for (ClientCore::Send& send : effects.sends) {
    if (lines_.has_value()) {
      const size_t bytes = BytesOf(send.message);
      lines_->out.Push(absl::Now(), bytes, std::move(send));
    } else {
      SendToShardThread(send);
    }
  }
  for (PullResult& result : effects.pulled) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pulled_ = std::move(result);
    changed_.notify_all();
  }
  if (effects.fenced && !leaving_) {
    Fail(absl::AbortedError(
        "the servers gave this worker up: its lease ran out although it runs"));
  }
  if (!effects.failure.ok()) Fail(effects.failure);
}

void PsClient::SendToShardThread(const ClientCore::Send& send) {
  const auto socket = shard_threads_.find(send.to);
  if (socket != shard_threads_.end())
    (void)socket->second.socket->Send(send.message);
}

void PsClient::PassLink() {
  if (!lines_.has_value()) return;
  while (const std::optional<ClientCore::Send> send =
             lines_->out.PopDue(absl::Now())) {
    SendToShardThread(*send);
  }
  while (const std::optional<Received> received =
             lines_->in.PopDue(absl::Now())) {
    if (shard_threads_.count(received->from) == 0) continue;  // Gone since.
    client_->OnMessage(received->from, received->message, absl::Now(),
                       &client_effects_);
  }
}

absl::Duration PsClient::RetryInitial(const View& view) const {
  const absl::Duration without_link = ClientCore::Options().retry_initial;
  if (!options_.link.has_value()) return without_link;
  // The last one of full windows in both directions: a push waits for the
  // pushes before it, and its acknowledgement for answers to pulls.
  size_t windows = 0;
  for (const wire::ServerMember& server : view.proto().server())
    windows += static_cast<size_t>(server.thread_size());
  return without_link +
         2 * (options_.link->latency +
              options_.link->Occupied(windows * options_.window_bytes));
}

void PsClient::Run() {
  poller_.Add(*coordinator_);
  poller_.Add(waker_);
  member_.Start(absl::Now(), &member_effects_);
  while (true) {
    PerformMember();
    PerformClient();
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (client_.has_value()) {
        const size_t now_unacknowledged =
            client_->unacknowledged_bytes() + posted_bytes_;
        if (now_unacknowledged != unacknowledged_bytes_) {
          unacknowledged_bytes_ = now_unacknowledged;
          changed_.notify_all();
        }
      }
      if (stopping_) break;
    }
    absl::Time wake = std::min(
        member_.NextWakeup(),
        client_.has_value() ? client_->NextWakeup() : absl::InfiniteFuture());
    if (lines_.has_value()) {
      wake =
          std::min({wake, lines_->out.NextWakeup(), lines_->in.NextWakeup()});
    }
    if (const absl::Status waited =
            poller_.Wait(std::max(wake - absl::Now(), absl::ZeroDuration()));
        !waited.ok()) {
      Fail(waited);
      break;
    }
    waker_.Drain();
    RunCommands();
    while (true) {
      absl::StatusOr<std::optional<Message>> message = coordinator_->Receive();
      if (!message.ok()) Fail(message.status());
      if (!message.ok() || !message->has_value()) break;
      member_.OnMessage(**message, absl::Now(), &member_effects_);
    }
    for (const auto& [owner, link] : shard_threads_) {
      while (true) {
        absl::StatusOr<std::optional<Message>> message = link.socket->Receive();
        if (!message.ok()) Fail(message.status());
        if (!message.ok() || !message->has_value()) break;
        if (lines_.has_value()) {
          lines_->in.Push(absl::Now(), BytesOf(**message),
                          {owner, **std::move(message)});
        } else {
          client_->OnMessage(owner, **message, absl::Now(), &client_effects_);
        }
      }
    }
    PassLink();
    const absl::Time now = absl::Now();
    if (now >= member_.NextWakeup()) {
      const std::lock_guard<std::mutex> lock(mutex_);
      FillStats();
      if (client_.has_value()) waiting_for_ = client_->WaitingFor(now);
    }
    member_.OnTick(now, &member_effects_);
    if (client_.has_value()) client_->OnTick(now, &client_effects_);
  }
  for (const auto& [owner, link] : shard_threads_) poller_.Remove(*link.socket);
  poller_.Remove(*coordinator_);
}

}  // namespace slackline
