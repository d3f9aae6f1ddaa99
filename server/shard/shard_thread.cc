#include "server/shard/shard_thread.h"

#include <spdlog/spdlog.h>
#include <time.h>
#include <unistd.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/endpoint.h"
#include "common/status.h"
#include "common/thread_name.h"
#include "common/timeline/event_names.h"
#include "common/timeline/message_event.h"
#include "server/shard/control_endpoint.h"
#include "server/shard/shard_peers.h"

namespace slackline {
namespace {

// Answers wait for the end of a batch, to share messages, but no longer than it
// takes to collect this much.
constexpr size_t kFlushBytes = 256 << 10;
constexpr int kBatchMax = 64;

// How often to look for how long the thread was kept from its processor.
constexpr absl::Duration kLookEvery = absl::Milliseconds(20);
constexpr absl::Duration kSleepMin = absl::Milliseconds(2);

const char* KindName(ShardTraceRecord::Kind kind) {
  switch (kind) {
    case ShardTraceRecord::Kind::kPullAnswered:
      return "pull";
    case ShardTraceRecord::Kind::kPushAccepted:
    case ShardTraceRecord::Kind::kPushDiscarded:
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

// 0: the peer is no worker that pushes and pulls.
uint64_t WorkerOf(const PeerId& peer) {
  return peer.kind == PeerId::Kind::kWorker ? peer.instance : 0;
}

absl::Duration ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Binds by tcp, and in every other way that the options allow, and says where
// others find it. Another way that this process does not have is one that
// others do not take: an error only if the options ask for that one.
absl::Status BindAll(Transport& transport, const ShardThread::Options& options,
                     Listener* peers, wire::Endpoints* endpoints) {
  endpoints->set_uid(geteuid());
  for (const std::string& endpoint :
       transport.EndpointsAt({.host = options.host, .port = options.port})) {
    const EndpointKind* const kind = FindEndpointKind(endpoint);
    SL_CHECK(kind != nullptr, endpoint);
    const bool over_network = kind->scope == EndpointScope::kNetwork;
    const bool is_needed = kind->transport == config::Limits::TCP ||
                           kind->transport == options.transport;
    if (!is_needed && !IsAllowed(*kind, options.transport)) continue;
    const absl::StatusOr<std::string> bound = peers->Bind(endpoint);
    if (bound.ok()) {
      endpoints->add_endpoint(over_network && !options.announced_host.empty()
                                  ? WithHost(*bound, options.announced_host)
                                  : *bound);
      continue;
    }
    if (is_needed) return bound.status();
    spdlog::warn("no {} with others: {}", std::string(kind->name),
                 std::string(bound.status().message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardThread>> ShardThread::Start(
    Transport& transport, const Options& options,
    const config::LearningRateSchedule& schedule) {
  SL_ASSIGN_OR_RETURN(
      std::unique_ptr<Listener> peers,
      transport.Listen({.unread_bytes_max = options.unread_bytes_max}));
  wire::Endpoints endpoints;
  SL_RETURN_IF_ERROR(BindAll(transport, options, peers.get(), &endpoints));
  SL_ASSIGN_OR_RETURN(
      std::unique_ptr<Channel> control,
      transport.Connect(PeerOf(options.core.self), kControlEndpoint, {}));
  std::unique_ptr<ShardThread> thread(new ShardThread(
      transport, std::move(peers), std::move(control), options, schedule));
  thread->endpoints_ = std::move(endpoints);
  thread->thread_ = std::thread(&ShardThread::Run, thread.get());
  return thread;
}

namespace {
// Versions and sums are made where peers on this host can read them, and where
// those of neighbouring shards lie side by side.
template <typename Options>
Options WithMemory(Options core, Transport& transport) {
  core.memory = transport.memory();
  return core;
}
}  // namespace

ShardThread::ShardThread(Transport& transport, std::unique_ptr<Listener> peers,
                         std::unique_ptr<Channel> control,
                         const Options& options,
                         const config::LearningRateSchedule& schedule)
    : options_(options),
      peers_(std::move(peers)),
      control_(std::move(control)),
      core_(WithMemory(options.core, transport), schedule),
      sums_(WithMemory(SumCore::Options(), transport)),
      meter_(LoadMeter::Options(), options.time.Now()),
      poller_(options.wait),
      links_(transport, poller_, options.transport),
      refusals_(absl::StrCat("shard thread ", options.core.self.thread)) {}

ShardThread::~ShardThread() {
  stopping_.store(true);
  waker_.Wake();
  thread_.join();
}

void ShardThread::Stop(const absl::Status& status) {
  spdlog::error("shard thread: {}", std::string(status.message()));
  {
    const MutexLock lock(failure_mutex_);
    failure_ = Annotate(
        status, absl::StrCat("shard thread ", options_.core.self.thread));
  }
  stopping_.store(true);
}

absl::Status ShardThread::failure() const {
  const MutexLock lock(failure_mutex_);
  return failure_;
}

void ShardThread::Run() {
  NameThisThread(absl::StrCat("shards ", options_.core.self.thread));
  poller_.Add(*peers_);
  poller_.Add(*control_);
  poller_.Add(waker_);
  SendStats();  // From now on the control thread knows this one.
  while (!stopping_.load()) {
    const absl::Duration wait_max = core_.NextWakeup() - options_.time.Now();
    if (const absl::Status waited =
            poller_.Wait(std::max(wait_max, absl::ZeroDuration()));
        !waited.ok()) {
      Stop(waited);
      break;
    }
    waker_.Drain();
    const absl::Time begin = options_.time.Now();
    const absl::Duration cpu_begin = ThreadCpuTime();
    LoadMeter::Batch batch;
    HandleBatch(begin, &batch);
    Account(begin, cpu_begin, batch);
  }
  poller_.Remove(waker_);
  poller_.Remove(*control_);
  poller_.Remove(*peers_);
}

void ShardThread::Account(absl::Time begin, absl::Duration cpu_begin,
                          LoadMeter::Batch batch) {
  batch.busy = options_.time.Now() - begin;
  batch.cpu = ThreadCpuTime() - cpu_begin;
  kept_in_batches_ += std::max(batch.busy - batch.cpu, absl::ZeroDuration());
  // A slow machine takes longer for the work, not for what others do meanwhile.
  sleep_owed_ += batch.cpu * (options_.slowdown - 1);
  if (sleep_owed_ >= kSleepMin) {  // Short sleeps last too long.
    const absl::Time asleep = options_.time.Now();
    absl::SleepFor(sleep_owed_);
    const absl::Duration slept = options_.time.Now() - asleep;
    sleep_owed_ -= slept;
    batch.busy += slept;
  }
  const absl::Time end = options_.time.Now();
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

absl::Time ShardThread::EndPhase(absl::Duration Phases::*phase) {
  const absl::Time now = options_.time.Now();
  phases_.*phase += now - phase_since_;
  phase_since_ = now;
  return now;
}

void ShardThread::Record(const Message& message, uint64_t worker,
                         absl::Time received_from, absl::Time taken_in) {
  options_.track->Add({.name = timeline_names::kReceive,
                       .begun = received_from,
                       .until = taken_in});
  options_.track->Add(EventOf(message, MessageEnd::kShardThread, worker,
                              taken_in, options_.time.Now()));
}

void ShardThread::HandleBatch(absl::Time begin, LoadMeter::Batch* batch) {
  phase_since_ = begin;
  const auto handled = [&] {
    EndPhase(&Phases::apply);
    if (core_.pending_reply_bytes() >= kFlushBytes) core_.Flush(&effects_);
    Perform();
    EndPhase(&Phases::answer);
  };
  core_.OnTick(begin, &effects_);
  TakeView();
  handled();
  while (true) {
    const absl::StatusOr<bool> received = ReceiveFromControl();
    if (!received.ok()) return Stop(received.status());
    if (!*received) break;
    handled();
  }
  for (int i = 0; i < kBatchMax; ++i) {
    absl::StatusOr<std::optional<Listener::Incoming>> incoming =
        peers_->Receive();
    if (!incoming.ok()) return Stop(incoming.status());
    if (!incoming->has_value()) break;
    ++batch->messages;
    const absl::Time received_from = phase_since_;
    const absl::Time taken_in = EndPhase(&Phases::receive);
    batch->queued += taken_in - begin;
    if ((*incoming)->message.header.has_sum_request()) {
      sums_.OnMessage((*incoming)->from, (*incoming)->message, &sum_effects_);
    } else {
      core_.OnMessage((*incoming)->from, (*incoming)->message, &effects_);
    }
    if (IsOn(options_.track)) {
      Record((*incoming)->message, WorkerOf((*incoming)->from), received_from,
             taken_in);
    }
    handled();
  }
  const absl::Status received =
      links_.Receive([&](Owner from, Message& message) {
        const absl::Time taken_in = phase_since_;
        core_.OnMessage(PeerOf(from), message, &effects_);
        if (IsOn(options_.track)) Record(message, 0, taken_in, taken_in);
        handled();
      });
  if (!received.ok()) return Stop(received);
  EndPhase(&Phases::receive);
  core_.Flush(&effects_);
  Perform();
  EndPhase(&Phases::answer);
}

absl::StatusOr<bool> ShardThread::ReceiveFromControl() {
  SL_ASSIGN_OR_RETURN(const std::optional<Message> message,
                      control_->Receive());
  if (!message.has_value()) return false;
  TakeView();
  if (message->header.has_stats_request()) SendStats();
  return true;
}

void ShardThread::Follow(std::shared_ptr<const View> view) {
  {
    const MutexLock lock(offered_mutex_);
    offered_ = std::move(view);
  }
  waker_.Wake();
}

void ShardThread::TakeView() {
  std::shared_ptr<const View> view;
  {
    const MutexLock lock(offered_mutex_);
    view = std::exchange(offered_, nullptr);
  }
  if (view == nullptr) return;
  view_ = std::move(view);
  links_.Follow(PeerOf(options_.core.self), view_);
  sums_.OnView(view_);
  core_.OnView(view_, &effects_);
}

void ShardThread::WarnOfOverruns() {
  const ChannelCounts counts = peers_->counts();
  const int64_t ended =
      counts.overruns - std::exchange(overruns_told_, counts.overruns);
  if (ended == 0) return;
  spdlog::warn(
      "shard thread {}: ended {} connection{} on which more than {} bytes lay "
      "unread, the last one of {}; members of the job never send as much: look "
      "for what else connects to this port",
      options_.core.self.thread, ended, ended == 1 ? "" : "s",
      options_.unread_bytes_max, counts.last_overrun);
}

void ShardThread::SendStats() {
  WarnOfOverruns();
  const ChannelCounts counts = peers_->counts();
  refusals_.Look(counts, options_.time.Now());
  Message reply;
  reply.header.set_view_number(view_ == nullptr ? 0 : view_->number());
  wire::StatsReply& stats = *reply.header.mutable_stats_reply();
  *stats.mutable_stats() = core_.Stats();
  stats.mutable_stats()->set_malformed(stats.stats().malformed() +
                                       counts.malformed);
  *stats.mutable_stats()->mutable_refused() = counts.refused;
  run::ThreadLoad& load = *stats.mutable_stats()->add_thread();
  load = meter_.Report(options_.time.Now(), [&](ShardId shard) {
    return core_.Owns(shard) || core_.Follows(shard);
  });
  load.set_thread(options_.core.self.thread);
  run::ThreadPhases& phases = *load.mutable_phase_seconds();
  phases.set_receive(absl::ToDoubleSeconds(phases_.receive));
  phases.set_apply(absl::ToDoubleSeconds(phases_.apply));
  phases.set_answer(absl::ToDoubleSeconds(phases_.answer));
  *stats.mutable_stats()->mutable_phase_seconds() = phases;
  stats.set_trace(std::move(trace_));
  trace_.clear();
  const absl::Status sent = control_->Send(reply);
  if (!sent.ok())
    spdlog::error("shard thread: {}", std::string(sent.message()));
}

void ShardThread::SendHandOver(const Outgoing& outgoing) {
  const absl::Status sent =
      links_.Send(OwnerOf(outgoing.to), outgoing.message);  // It is sent again.
  if (!sent.ok()) Stop(sent);
}

void ShardThread::SendAnswer(const Outgoing& outgoing) {
  const absl::Status sent = peers_->Send(outgoing.to, outgoing.message);
  // A peer that is gone or full asks again, or its lease or time-out runs out.
  if (!sent.ok() && !absl::IsNotFound(sent) &&
      !absl::IsResourceExhausted(sent)) {
    spdlog::error("shard thread: {}", std::string(sent.message()));
  }
}

void ShardThread::Send(const Outgoing& outgoing) {
  const bool recorded = IsOn(options_.track);
  const absl::Time begun = recorded ? options_.time.Now() : absl::Time();
  if (outgoing.message.header.has_hand_over()) {
    SendHandOver(outgoing);
  } else {
    SendAnswer(outgoing);
  }
  if (!recorded) return;
  options_.track->Add(EventOf(outgoing.message, MessageEnd::kShardThread,
                              WorkerOf(outgoing.to), begun,
                              options_.time.Now()));
}

void ShardThread::Perform() {
  if (!effects_.failure.ok()) Stop(effects_.failure);
  if (effects_.report) SendStats();
  if (effects_.cut.has_value() && options_.on_cut)
    options_.on_cut(*std::move(effects_.cut));
  for (const Outgoing& outgoing : effects_.sends) Send(outgoing);
  for (const Outgoing& outgoing : sum_effects_.sends) Send(outgoing);
  sum_effects_.sends.clear();
  for (const ShardTraceRecord& record : effects_.trace) {
    absl::StrAppendFormat(
        &trace_,
        "{\"ns\":%d,\"event\":\"%s\",\"shard\":%d,\"rank\":%d,\"clock\":%d,"
        "\"min_clock\":%d,\"version\":%d%s}\n",
        absl::ToUnixNanos(options_.time.Now()), KindName(record.kind),
        static_cast<int32_t>(record.shard), static_cast<int32_t>(record.rank),
        record.clock, record.min_clock, record.version, RanksText(record));
  }
  work_.insert(work_.end(), effects_.work.begin(), effects_.work.end());
  effects_.sends.clear();
  effects_.trace.clear();
  effects_.work.clear();
  effects_.report = false;
  effects_.cut.reset();
  effects_.failure = absl::OkStatus();
}

}  // namespace slackline
