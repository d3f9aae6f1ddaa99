#include "server/shard/shard_thread.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/net/host_id.h"
#include "common/status.h"

namespace slackline {
namespace {

// Answers wait for the end of a batch, to share messages, but no longer than it
// takes to collect this much.
constexpr size_t kFlushBytes = 1 << 20;
constexpr int kBatchMax = 64;

const char* KindName(ShardTraceRecord::Kind kind) {
  switch (kind) {
    case ShardTraceRecord::Kind::kPullAnswered:
      return "pull";
    case ShardTraceRecord::Kind::kPushTakenOver:
      return "push";
    case ShardTraceRecord::Kind::kUpdated:
      return "update";
  }
  return "?";
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
  if (options.ipc) {
    SL_ASSIGN_OR_RETURN(const std::string ipc,
                        router->Bind(UniqueIpcEndpoint()));
    endpoints.set_ipc(ipc);
  }
  SL_ASSIGN_OR_RETURN(const std::string control,
                      router->Bind(absl::StrCat("inproc://shard-thread-",
                                                options.core.self.thread)));
  std::unique_ptr<ShardThread> thread(new ShardThread(
      std::move(router), options, std::move(optimizer), schedule));
  thread->endpoints_ = std::move(endpoints);
  thread->control_endpoint_ = control;
  thread->thread_ = std::thread(&ShardThread::Run, thread.get());
  return thread;
}

ShardThread::ShardThread(std::unique_ptr<RouterSocket> router,
                         const Options& options, Optimizer optimizer,
                         const config::LearningRateSchedule& schedule)
    : router_(std::move(router)),
      core_(options.core, std::move(optimizer), schedule) {}

ShardThread::~ShardThread() {
  stopping_.store(true);
  waker_.Wake();
  thread_.join();
}

void ShardThread::Run() {
  Poller poller;
  poller.Add(*router_);
  poller.Add(waker_);
  while (!stopping_.load()) {
    if (const absl::Status waited = poller.Wait(absl::InfiniteDuration());
        !waited.ok()) {
      spdlog::error("shard thread: {}", std::string(waited.message()));
      break;
    }
    waker_.Drain();
    for (int i = 0; i < kBatchMax; ++i) {
      absl::StatusOr<std::optional<RouterSocket::Incoming>> incoming =
          router_->Receive();
      if (!incoming.ok()) {
        spdlog::error("shard thread: {}",
                      std::string(incoming.status().message()));
        stopping_.store(true);
        break;
      }
      if (!incoming->has_value()) break;
      Handle(**incoming);
      if (core_.pending_reply_bytes() >= kFlushBytes) core_.Flush(&effects_);
      Perform();
    }
    core_.Flush(&effects_);
    Perform();
  }
  poller.Remove(*router_);
}

void ShardThread::Handle(const RouterSocket::Incoming& incoming) {
  const bool from_control = incoming.from.kind == PeerId::Kind::kServer;
  switch (incoming.message.header.body_case()) {
    case wire::Header::kView: {
      if (!from_control) break;
      absl::StatusOr<std::shared_ptr<const View>> view =
          View::Create(incoming.message.header.view());
      SL_CHECK(view.ok(),
               view.status().ToString());  // The control thread checked it.
      core_.OnView(*std::move(view), &effects_);
      return;
    }
    case wire::Header::kStatsRequest: {
      if (!from_control) break;
      Outgoing reply{.to = incoming.from, .message = {}};
      wire::StatsReply& stats = *reply.message.header.mutable_stats_reply();
      *stats.mutable_stats() = core_.stats();
      stats.mutable_stats()->set_malformed(core_.stats().malformed() +
                                           router_->malformed_count());
      stats.set_trace(std::move(trace_));
      trace_.clear();
      effects_.sends.push_back(std::move(reply));
      return;
    }
    default:
      break;
  }
  core_.OnMessage(incoming.from, incoming.message, &effects_);
}

void ShardThread::Perform() {
  for (const Outgoing& outgoing : effects_.sends) {
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
        "\"min_clock\":%d,\"version\":%d}\n",
        absl::GetCurrentTimeNanos(), KindName(record.kind),
        static_cast<int32_t>(record.shard), static_cast<int32_t>(record.rank),
        record.clock, record.min_clock, record.version);
  }
  effects_.sends.clear();
  effects_.trace.clear();
}

}  // namespace slackline
