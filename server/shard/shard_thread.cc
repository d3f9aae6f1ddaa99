#include "server/shard/shard_thread.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <fstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/net/host_id.h"
#include "common/net/shard_endpoint.h"
#include "common/status.h"

namespace slackline {
namespace {

// Answers wait for the end of a batch, to share messages, but no longer than it
// takes to collect this much.
constexpr size_t kFlushBytes = 1 << 20;
constexpr int kBatchMax = 64;

// How often to look for how long the thread was kept from its processor.
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr absl::Duration kSleepMin = absl::Milliseconds(2);

const char* KindName(ShardTraceRecord::Kind kind) {
  switch (kind) {
    case ShardTraceRecord::Kind::kPullAnswered:
      return "pull";
    case ShardTraceRecord::Kind::kPushTakenOver:
      return "push";
    case ShardTraceRecord::Kind::kInstalled:
      return "install";
    case ShardTraceRecord::Kind::kAdvanced:
      return "advance";
    case ShardTraceRecord::Kind::kUpdated:
      return "update";
  }
  return "?";
}

// "" for records without ranks.
std::string RanksText(const ShardTraceRecord& record) {
  if (record.ranks.empty()) return "";
  return absl::StrCat(",\"ranks\":[",
                      absl::StrJoin(record.ranks, ",",
                                    [](std::string* out, Rank rank) {
                                      absl::StrAppend(
                                          out, static_cast<int32_t>(rank));
                                    }),
                      "],\"workers\":", record.workers);
}

// For how long this thread has been ready to run and others ran instead: the
// second figure of /proc/thread-self/schedstat (Linux,
// Documentation/scheduler/sched-stats.rst). Zero where there is none.
absl::Duration TimeKeptWaiting() {
  std::ifstream file("/proc/thread-self/schedstat");
  int64_t ran_ns = 0;
  int64_t waited_ns = 0;
  if (!(file >> ran_ns >> waited_ns)) return absl::ZeroDuration();
  return absl::Nanoseconds(waited_ns);
}

absl::Duration ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardThread>> ShardThread::Start(
    NetContext& context, const Options& options, Optimizer optimizer,
    const config::LearningRateSchedule& schedule) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<RouterSocket> router,
                      RouterSocket::Create(context));
  wire::Endpoints endpoints;
  SL_ASSIGN_OR_RETURN(
      const std::string tcp,
      router->Bind(absl::StrCat("tcp://", options.host, ":", options.port)));
  endpoints.set_tcp(tcp);
  if (options.transport != config::Limits::TCP) {
    SL_ASSIGN_OR_RETURN(const std::string ipc,
                        router->Bind(UniqueIpcEndpoint()));
    endpoints.set_ipc(ipc);
  }
  SL_ASSIGN_OR_RETURN(const std::string control,
                      router->Bind(absl::StrCat("inproc://shard-thread-",
                                                options.core.self.thread)));
  std::unique_ptr<ShardThread> thread(new ShardThread(
      context, std::move(router), options, std::move(optimizer), schedule));
  thread->endpoints_ = std::move(endpoints);
  thread->control_endpoint_ = control;
  thread->thread_ = std::thread(&ShardThread::Run, thread.get());
  return thread;
}

ShardThread::ShardThread(NetContext& context,
                         std::unique_ptr<RouterSocket> router,
                         const Options& options, Optimizer optimizer,
                         const config::LearningRateSchedule& schedule)
    : context_(context),
      options_(options),
      router_(std::move(router)),
      core_(options.core, std::move(optimizer), schedule),
      meter_(LoadMeter::Options(), absl::Now()) {}

ShardThread::~ShardThread() {
  stopping_.store(true);
  waker_.Wake();
  thread_.join();
}

void ShardThread::Stop(const absl::Status& status) {
  spdlog::error("shard thread: {}", std::string(status.message()));
  stopping_.store(true);
}

void ShardThread::Run() {
  poller_.Add(*router_);
  poller_.Add(waker_);
  while (!stopping_.load()) {
    const absl::Duration wait_max = core_.NextWakeup() - absl::Now();
    if (const absl::Status waited =
            poller_.Wait(std::max(wait_max, absl::ZeroDuration()));
        !waited.ok()) {
      Stop(waited);
      break;
    }
    waker_.Drain();
    const absl::Time begin = absl::Now();
    const absl::Duration cpu_begin = ThreadCpuTime();
    LoadMeter::Batch batch;
    HandleBatch(begin, &batch);
    Account(begin, cpu_begin, batch);
  }
  for (const auto& [owner, link] : links_) poller_.Remove(*link.socket);
  poller_.Remove(*router_);
}

void ShardThread::Account(absl::Time begin, absl::Duration cpu_begin,
                          LoadMeter::Batch batch) {
  batch.busy = absl::Now() - begin;
  batch.cpu = ThreadCpuTime() - cpu_begin;
  kept_in_batches_ += std::max(batch.busy - batch.cpu, absl::ZeroDuration());
  sleep_owed_ += batch.busy * (options_.slowdown - 1);
  if (sleep_owed_ >= kSleepMin) {  // Short sleeps last too long.
    const absl::Time asleep = absl::Now();
    absl::SleepFor(sleep_owed_);
    const absl::Duration slept = absl::Now() - asleep;
    sleep_owed_ -= slept;
    batch.busy += slept;
  }
  const absl::Time end = absl::Now();
  if (end >= next_look_) {
    next_look_ = end + kLookEvery;
    // What it was kept from its processor, between batches as well: when
    // messages were there and it could not run.
    const absl::Duration kept = TimeKeptWaiting();
    batch.busy +=
        std::max(kept - kept_waiting_ - kept_in_batches_, absl::ZeroDuration());
    kept_waiting_ = kept;
    kept_in_batches_ = absl::ZeroDuration();
  }
  batch.work = work_;
  meter_.OnBatch(batch, end);
  work_.clear();
}

void ShardThread::HandleBatch(absl::Time begin, LoadMeter::Batch* batch) {
  const auto handled = [&] {
    if (core_.pending_reply_bytes() >= kFlushBytes) core_.Flush(&effects_);
    Perform();
  };
  core_.OnTick(begin, &effects_);
  Perform();
  for (int i = 0; i < kBatchMax; ++i) {
    absl::StatusOr<std::optional<RouterSocket::Incoming>> incoming =
        router_->Receive();
    if (!incoming.ok()) return Stop(incoming.status());
    if (!incoming->has_value()) break;
    ++batch->messages;
    batch->queued += absl::Now() - begin;
    Handle(**incoming);
    handled();
  }
  // Handling these may add links, but not remove any.
  for (const auto& [owner, link] : links_) {
    while (true) {
      absl::StatusOr<std::optional<Message>> message = link.socket->Receive();
      if (!message.ok()) return Stop(message.status());
      if (!message->has_value()) break;
      core_.OnMessage({.kind = PeerId::Kind::kShardThread,
                       .index = owner.server,
                       .instance = static_cast<uint64_t>(owner.thread)},
                      **message, &effects_);
      handled();
    }
  }
  core_.Flush(&effects_);
  Perform();
}

void ShardThread::Handle(const RouterSocket::Incoming& incoming) {
  const bool from_control = incoming.from.kind == PeerId::Kind::kServer;
  if (from_control && incoming.message.header.has_view()) {
    control_ = incoming.from;
    return OnView(incoming.message.header.view());
  }
  if (from_control && incoming.message.header.has_stats_request()) {
    effects_.sends.push_back(StatsReplyTo(incoming.from));
    return;
  }
  core_.OnMessage(incoming.from, incoming.message, &effects_);
}

void ShardThread::OnView(const wire::View& proto) {
  absl::StatusOr<std::shared_ptr<const View>> view = View::Create(proto);
  SL_CHECK(view.ok(),
           view.status().ToString());  // The control thread checked it.
  view_ = *std::move(view);
  std::erase_if(links_, [&](const auto& entry) {
    const wire::ServerMember* const server =
        view_->FindServer(entry.first.server);
    if (server != nullptr && server->incarnation() == entry.second.incarnation)
      return false;
    poller_.Remove(*entry.second.socket);
    return true;
  });
  core_.OnView(view_, &effects_);
}

Outgoing ShardThread::StatsReplyTo(const PeerId& to) {
  Outgoing reply{.to = to, .message = {}};
  wire::StatsReply& stats = *reply.message.header.mutable_stats_reply();
  *stats.mutable_stats() = core_.Stats();
  stats.mutable_stats()->set_malformed(stats.stats().malformed() +
                                       router_->malformed_count());
  run::ThreadLoad& load = *stats.mutable_stats()->add_thread();
  load = meter_.Report(absl::Now(),
                       [&](ShardId shard) { return core_.Owns(shard); });
  load.set_thread(options_.core.self.thread);
  stats.set_trace(std::move(trace_));
  trace_.clear();
  return reply;
}

void ShardThread::SendHandOver(const Outgoing& outgoing) {
  const Owner to{outgoing.to.index, static_cast<int32_t>(outgoing.to.instance)};
  auto link = links_.find(to);
  if (link == links_.end()) {
    const wire::ServerMember* const server = view_->FindServer(to.server);
    if (server == nullptr || to.thread >= server->thread_size()) return;
    const absl::StatusOr<std::string> endpoint =
        ShardEndpoint(*server, to.thread, HostId(), options_.transport);
    if (!endpoint.ok()) return Stop(endpoint.status());
    absl::StatusOr<std::unique_ptr<DealerSocket>> socket = DealerSocket::Create(
        context_,
        {.kind = PeerId::Kind::kShardThread,
         .index = options_.core.self.server,
         .instance = static_cast<uint64_t>(options_.core.self.thread)});
    if (!socket.ok()) return Stop(socket.status());
    if (const absl::Status connected = (*socket)->Connect(*endpoint);
        !connected.ok()) {
      return Stop(connected);
    }
    poller_.Add(**socket);
    link = links_
               .emplace(to, Link{.incarnation = server->incarnation(),
                                 .socket = *std::move(socket)})
               .first;
  }
  (void)link->second.socket->Send(outgoing.message);  // It is sent again.
}

void ShardThread::Perform() {
  if (effects_.report && control_.has_value()) {
    effects_.sends.push_back(StatsReplyTo(*control_));
  }
  for (const Outgoing& outgoing : effects_.sends) {
    if (outgoing.message.header.has_hand_over()) {
      SendHandOver(outgoing);
      continue;
    }
    const absl::Status sent = router_->Send(outgoing.to, outgoing.message);
    // A peer that is gone or full asks again, or its lease runs out.
    if (!sent.ok() && !absl::IsNotFound(sent) &&
        !absl::IsResourceExhausted(sent)) {
      spdlog::error("shard thread: {}", std::string(sent.message()));
    }
  }
  for (const ShardTraceRecord& record : effects_.trace) {
    absl::StrAppendFormat(
        &trace_,
        "{\"ns\":%d,\"event\":\"%s\",\"shard\":%d,\"rank\":%d,\"clock\":%d,"
        "\"min_clock\":%d,\"version\":%d%s}\n",
        absl::GetCurrentTimeNanos(), KindName(record.kind),
        static_cast<int32_t>(record.shard), static_cast<int32_t>(record.rank),
        record.clock, record.min_clock, record.version, RanksText(record));
  }
  work_.insert(work_.end(), effects_.work.begin(), effects_.work.end());
  effects_.sends.clear();
  effects_.trace.clear();
  effects_.work.clear();
  effects_.report = false;
}

}  // namespace slackline
