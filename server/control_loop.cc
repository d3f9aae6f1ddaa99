#include "server/control_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/time/clock.h"
#include "common/metrics/histogram.h"
#include "common/status.h"

namespace slackline {
namespace {

// How often statistics are collected from the shard threads.
constexpr absl::Duration kStatsInterval = absl::Milliseconds(500);
// At the end. Shard threads answer between two messages; large updates take
// milliseconds.
constexpr absl::Duration kStatsWaitMax = absl::Seconds(2);
// How long an interrupted server waits for the coordinator to end the job.
constexpr absl::Duration kInterruptWaitMax = absl::Seconds(3);

void Merge(const run::ServerStats& from, run::ServerStats* to) {
  to->set_pushes(to->pushes() + from.pushes());
  to->set_pulls(to->pulls() + from.pulls());
  to->set_updates(to->updates() + from.updates());
  to->set_duplicates(to->duplicates() + from.duplicates());
  to->set_dropped(to->dropped() + from.dropped());
  to->set_malformed(to->malformed() + from.malformed());
  to->set_bytes_in(to->bytes_in() + from.bytes_in());
  to->set_bytes_out(to->bytes_out() + from.bytes_out());
  to->set_dropped(to->dropped() + from.dropped());
  to->set_shards(to->shards() + from.shards());
  to->set_pulls_parked(to->pulls_parked() + from.pulls_parked());
  MergeHistogram(from.staleness_clocks(), to->mutable_staleness_clocks());
  MergeHistogram(from.staleness_updates(), to->mutable_staleness_updates());
  to->mutable_thread()->MergeFrom(from.thread());
  to->mutable_hand_over()->MergeFrom(from.hand_over());
}

bool SameHandOvers(const run::ServerStats& a, const run::ServerStats& b) {
  if (a.hand_over_size() != b.hand_over_size()) return false;
  for (int i = 0; i < a.hand_over_size(); ++i) {
    if (a.hand_over(i).move() != b.hand_over(i).move() ||
        a.hand_over(i).shard() != b.hand_over(i).shard() ||
        a.hand_over(i).state() != b.hand_over(i).state())
      return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLoop>> ControlLoop::Create(
    NetContext& context, const Options& options) {
  const PeerId self{.kind = PeerId::Kind::kServer,
                    .index = options.member.join.index(),
                    .instance = options.member.join.token()};
  SL_ASSIGN_OR_RETURN(std::unique_ptr<DealerSocket> coordinator,
                      DealerSocket::Create(context, self));
  SL_RETURN_IF_ERROR(coordinator->Connect(options.coordinator_endpoint));
  std::vector<std::unique_ptr<DealerSocket>> shard_threads;
  for (const std::string& endpoint : options.shard_thread_endpoints) {
    SL_ASSIGN_OR_RETURN(shard_threads.emplace_back(),
                        DealerSocket::Create(context, self));
    SL_RETURN_IF_ERROR(shard_threads.back()->Connect(endpoint));
  }
  return std::unique_ptr<ControlLoop>(new ControlLoop(
      options, std::move(coordinator), std::move(shard_threads)));
}

ControlLoop::ControlLoop(
    const Options& options, std::unique_ptr<DealerSocket> coordinator,
    std::vector<std::unique_ptr<DealerSocket>> shard_threads)
    : options_(options),
      member_(options.member),
      coordinator_(std::move(coordinator)),
      shard_threads_(std::move(shard_threads)),
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {
  poller_.Add(*coordinator_);
  poller_.Add(waker_);
  for (const auto& shard_thread : shard_threads_) poller_.Add(*shard_thread);
  thread_stats_.resize(shard_threads_.size());
  if (!options_.trace_file.empty())
    trace_.open(options_.trace_file, std::ios::trunc);
}

void ControlLoop::Interrupt(const std::string& reason) {
  if (interrupted_.load(std::memory_order_acquire)) return;
  interrupt_reason_ = reason;
  interrupted_.store(true, std::memory_order_release);
  waker_.Wake();
}

absl::Status ControlLoop::Run() {
  MemberCore::Effects effects;
  member_.Start(absl::Now(), &effects);
  absl::Time next_stats = absl::Now();
  absl::Time give_up = absl::InfiniteFuture();
  bool asked_to_stop = false;
  while (true) {
    if (absl::Status status = Perform(&effects); !status.ok()) return status;
    const std::shared_ptr<const View>& view = member_.view();
    if (view != nullptr && view->proto().state() == wire::FINISHED)
      return absl::OkStatus();

    if (interrupted_.load(std::memory_order_acquire) && !asked_to_stop) {
      asked_to_stop = true;
      give_up = absl::Now() + kInterruptWaitMax;
      if (member_.incarnation() == 0)
        return absl::CancelledError(interrupt_reason_);
      if (OwnsNothing() && options_.member.join.index() != 0) continue;
      wire::Call call;
      call.mutable_stop()->set_reason(interrupt_reason_);
      member_.Call(call, Payload(), absl::Now(), &effects);
      SL_RETURN_IF_ERROR(Perform(&effects));
    }
    if (absl::Now() > give_up) return absl::CancelledError(interrupt_reason_);

    if (leave_call_.has_value() && *leave_call_ == 0) {  // Answered.
      spdlog::info("this server has no shards and leaves the job");
      return absl::OkStatus();
    }
    const bool wants_to_leave =
        Draining() || (asked_to_stop && options_.member.join.index() != 0);
    if (wants_to_leave && OwnsNothing() && !leave_call_.has_value()) {
      wire::Call call;
      call.mutable_leave();
      leave_call_ = member_.Call(call, Payload(), absl::Now(), &effects);
      continue;
    }

    const absl::Time wake =
        std::min({member_.NextWakeup(), next_stats, give_up});
    SL_RETURN_IF_ERROR(
        poller_.Wait(std::max(wake - absl::Now(), absl::ZeroDuration())));
    waker_.Drain();
    while (true) {
      SL_ASSIGN_OR_RETURN(std::optional<Message> message,
                          coordinator_->Receive());
      if (!message.has_value()) break;
      member_.OnMessage(*message, absl::Now(), &effects);
    }
    const bool news = ReceiveStats();
    if (news && member_.incarnation() != 0) {
      member_.SendHeartbeat(absl::Now(), &effects);
    }
    if (absl::Now() >= next_stats) {
      AskForStats();
      next_stats = absl::Now() + kStatsInterval;
    }
    member_.OnTick(absl::Now(), &effects);
  }
}

absl::Status ControlLoop::Perform(MemberCore::Effects* effects) {
  MemberCore::Effects now_due;
  std::swap(now_due, *effects);
  for (const Message& message : now_due.sends)
    (void)coordinator_->Send(message);
  if (now_due.joined) spdlog::info("joined the job");
  if (now_due.view != nullptr) {
    Message message;
    message.header.set_view_number(now_due.view->number());
    *message.header.mutable_view() = now_due.view->proto();
    SendToShardThreads(message);
    const wire::JobState state = now_due.view->proto().state();
    spdlog::info("view {}: {}, {} workers", now_due.view->number(),
                 wire::JobState_Name(state),
                 now_due.view->proto().worker_size());
    if (state == wire::FINISHED || state == wire::FAILED) {
      CollectLastStats();
      MemberCore::Effects last;
      member_.SendHeartbeat(absl::Now(), &last);
      for (const Message& m : last.sends) (void)coordinator_->Send(m);
      if (state == wire::FAILED)
        return absl::AbortedError(now_due.view->proto().reason());
    }
  }
  for (const MemberCore::CallResult& answer : now_due.answers) {
    if (!leave_call_.has_value() || answer.call_id != *leave_call_) continue;
    if (answer.reply.code() == wire::OK) {
      leave_call_ = 0;
    } else {
      leave_call_.reset();  // It was given a shard after all.
    }
  }
  if (now_due.fenced && leave_call_.has_value()) {
    leave_call_ = 0;  // It let us go, and the answer was lost.
    return absl::OkStatus();
  }
  if (now_due.fenced) {
    return absl::AbortedError(
        "the coordinator gave this server up: its lease ran out although it "
        "runs; was the "
        "machine paused or overloaded? raise limits { lease_ms: ... }");
  }
  return now_due.failure;
}

bool ControlLoop::OwnsNothing() const {
  const std::shared_ptr<const View>& view = member_.view();
  if (view == nullptr || view->proto().state() != wire::RUNNING) return false;
  const int32_t self = options_.member.join.index();
  const wire::View& proto = view->proto();
  return std::find(proto.owner_server().begin(), proto.owner_server().end(),
                   self) == proto.owner_server().end() &&
         std::none_of(
             proto.move().begin(), proto.move().end(),
             [&](const wire::Move& move) { return move.server() == self; });
}

bool ControlLoop::Draining() const {
  const std::shared_ptr<const View>& view = member_.view();
  if (view == nullptr) return false;
  const wire::ServerMember* const self =
      view->FindServer(options_.member.join.index());
  return self != nullptr && self->draining();
}

void ControlLoop::AskForStats() {
  io_utilisation_ = io_load_.Update(absl::Now());
  Message request;
  request.header.mutable_stats_request();
  SendToShardThreads(request);
}

bool ControlLoop::ReceiveStats() {
  bool received = false;
  bool news = false;
  for (size_t t = 0; t < shard_threads_.size(); ++t) {
    while (true) {
      absl::StatusOr<std::optional<Message>> message =
          shard_threads_[t]->Receive();
      if (!message.ok() || !message->has_value()) break;
      if (!(*message)->header.has_stats_reply()) continue;
      const wire::StatsReply& reply = (*message)->header.stats_reply();
      if (trace_.is_open()) trace_ << reply.trace() << std::flush;
      news = news || !SameHandOvers(reply.stats(), thread_stats_[t]);
      thread_stats_[t] = reply.stats();
      received = true;
    }
  }
  if (!received) return false;
  run::ServerStats total;
  total.set_index(options_.member.join.index());
  for (const run::ServerStats& stats : thread_stats_) Merge(stats, &total);
  total.set_io_utilisation(io_utilisation_);
  member_.SetStats(total);
  return news;
}

void ControlLoop::CollectLastStats() {
  const absl::Time deadline = absl::Now() + kStatsWaitMax;
  for (run::ServerStats& stats : thread_stats_) stats.clear_thread();
  AskForStats();
  // Every answer tells the thread's load.
  while (
      absl::Now() < deadline &&
      std::any_of(thread_stats_.begin(), thread_stats_.end(),
                  [](const auto& stats) { return stats.thread_size() == 0; })) {
    if (!poller_.Wait(deadline - absl::Now()).ok()) return;
    (void)ReceiveStats();
    // Nothing more is wanted of these; the poller wants them looked at.
    waker_.Drain();
    while (true) {
      const absl::StatusOr<std::optional<Message>> message =
          coordinator_->Receive();
      if (!message.ok() || !message->has_value()) break;
    }
  }
}

void ControlLoop::SendToShardThreads(const Message& message) {
  for (const std::unique_ptr<DealerSocket>& shard_thread : shard_threads_) {
    (void)shard_thread->Send(message);
  }
}

}  // namespace slackline
