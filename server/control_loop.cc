#include "server/control_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/control_endpoint.h"

namespace slackline {
namespace {

// A shard thread that has not told its statistics for longer is named.
constexpr absl::Duration kAnswersSoon = absl::Seconds(5);

ServerCore::Options CoreOptions(const ControlLoop::Options& options) {
  ServerCore::Options core = options.core;
  core.threads = options.shard_threads;
  return core;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlLoop>> ControlLoop::Create(
    Transport& transport, const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Listener> shard_threads,
                      transport.Listen({}));
  SL_RETURN_IF_ERROR(shard_threads->Bind(kControlEndpoint).status());
  std::unique_ptr<ControlLoop> loop(
      new ControlLoop(transport, options, std::move(shard_threads)));
  SL_RETURN_IF_ERROR(loop->ConnectTo(options.core.member.coordinators.front()));
  return loop;
}

ControlLoop::ControlLoop(Transport& transport, const Options& options,
                         std::unique_ptr<Listener> shard_threads)
    : options_(options),
      transport_(transport),
      core_(CoreOptions(options)),
      shard_threads_(std::move(shard_threads)),
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}),
      trial_(transport, poller_, options.via,
             {.kind = PeerId::Kind::kObserver,
              .index = options.core.member.join.index(),
              .instance = options.core.member.join.token()}),
      inspector_(options.inspection),
      io_load_() {
  poller_.Add(waker_);
  poller_.Add(*shard_threads_);
  if (!options_.trace_file.empty())
    trace_.open(options_.trace_file, std::ios::trunc);
}

absl::Status ControlLoop::ConnectTo(const std::string& coordinator) {
  const wire::JoinRequest& join = options_.core.member.join;
  const PeerId self{.kind = PeerId::Kind::kServer,
                    .index = join.index(),
                    .instance = join.token()};
  if (coordinator_ != nullptr) poller_.Remove(*coordinator_);
  SL_ASSIGN_OR_RETURN(coordinator_, transport_.Connect(self, coordinator,
                                                       {.watch_link = true}));
  poller_.Add(*coordinator_);
  return absl::OkStatus();
}

void ControlLoop::Retire(const std::string& reason) {
  {
    const MutexLock lock(retire_mutex_);
    retire_ = reason;
  }
  waker_.Wake();
}

void ControlLoop::TakeRetirement() {
  std::optional<std::string> reason;
  {
    const MutexLock lock(retire_mutex_);
    reason.swap(retire_);
  }
  if (reason.has_value()) core_.Retire(*reason, options_.time.Now(), &effects_);
}

void ControlLoop::Interrupt(const std::string& reason) {
  if (interrupted_.load(std::memory_order_acquire)) return;
  interrupt_reason_ = reason;
  interrupted_.store(true, std::memory_order_release);
  waker_.Wake();
}

void ControlLoop::CutPartDone(wire::CutPart part) {
  {
    const MutexLock lock(cut_parts_mutex_);
    cut_parts_.push_back(std::move(part));
  }
  waker_.Wake();
}

void ControlLoop::AnswerInspections() {
  const absl::Time now = options_.time.Now();
  for (Inspector::Answer& answer : inspector_.TakeAnswers(now)) {
    core_.AnswerInspection(std::move(answer.inspected), std::move(answer.frame),
                           now, &effects_);
  }
}

void ControlLoop::TakeCutParts() {
  std::vector<wire::CutPart> parts;
  {
    const MutexLock lock(cut_parts_mutex_);
    parts.swap(cut_parts_);
  }
  for (const wire::CutPart& part : parts)
    core_.OnCutPart(part, options_.time.Now(), &effects_);
}

absl::Status ControlLoop::Run() {
  answered_at_.assign(static_cast<size_t>(options_.shard_threads),
                      options_.time.Now());
  OfferSeat();
  core_.Start(options_.time.Now(), &effects_);
  while (!end_.has_value()) {
    absl::Status ran = Perform();
    TellHealth();
    if (end_.has_value()) break;
    if (ran.ok()) ran = RunOnce();
    if (ran.ok()) continue;
    // Nothing can be waited for any more; what is sent now still leaves.
    core_.OnFailure(ran, options_.time.Now(), &effects_);
    (void)Perform();
    return ran;
  }
  return end_->status;
}

absl::Status ControlLoop::RunOnce() {
  const TimeSource& time = options_.time;
  const absl::Time now = time.Now();
  SL_RETURN_IF_ERROR(poller_.Wait(
      std::min(core_.NextWakeup(), inspector_.NextWakeup(now)) - now));
  waker_.Drain();
  if (options_.coordinator_failure)
    SL_RETURN_IF_ERROR(options_.coordinator_failure());
  SL_ASSIGN_OR_RETURN(const std::optional<LinkState> link,
                      coordinator_->ReceiveLinkState());
  if (link.has_value()) core_.OnLink(*link, time.Now());
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<Message> message,
                        coordinator_->Receive());
    if (!message.has_value()) break;
    core_.OnMessage(*message, time.Now(), &effects_);
  }
  TryLinks();
  SL_RETURN_IF_ERROR(ReceiveFromShardThreads());
  TakeCutParts();
  TakeRetirement();
  AnswerInspections();
  if (interrupted_.load(std::memory_order_acquire))
    core_.Interrupt(interrupt_reason_, time.Now(), &effects_);
  if (options_.coordinator_over) {
    if (const auto end = options_.coordinator_over(); end.has_value())
      core_.OnCoordinatorOver(*end, &effects_);
  }
  core_.OnTick(time.Now(), &effects_);
  OfferSeat();
  return absl::OkStatus();
}

void ControlLoop::TellHealth() {
  if (options_.health == nullptr) return;
  const absl::Time now = options_.time.Now();
  const std::shared_ptr<const View>& view = core_.view();
  const wire::JobState state =
      view == nullptr ? wire::FORMING : view->proto().state();
  HealthBoard::Look look;
  if (end_.has_value() || state == wire::FINISHED || state == wire::FAILED) {
    look.stage = HealthStage::kEnding;
  } else if (state == wire::RUNNING) {
    look.stage = HealthStage::kTakingPart;
    const auto slowest =
        std::min_element(answered_at_.begin(), answered_at_.end());
    look.still_since = *slowest;
    if (now - *slowest > kAnswersSoon)
      look.doing =
          absl::StrCat("shard thread ", slowest - answered_at_.begin());
  } else {
    answered_at_.assign(answered_at_.size(), now);
  }
  options_.health->Looked(std::move(look), now);
  options_.health->Counted(core_.stats());
}

void ControlLoop::TryLinks() {
  if (effects_.view != nullptr) trial_.End();
  if (effects_.try_links.has_value()) {
    trial_.Begin(*effects_.try_links);
    effects_.try_links.reset();
  }
  const std::optional<wire::LinksTried> tried = trial_.Look();
  if (tried.has_value()) core_.OnLinks(*tried, options_.time.Now(), &effects_);
}

void ControlLoop::OfferSeat() {
  if (!options_.offer_seat) return;
  core_.SetHostsCoordinator(
      options_.offer_seat(core_.CandidacyAt(options_.time.Now())));
}

absl::Status ControlLoop::ReceiveFromShardThreads() {
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<Listener::Incoming> incoming,
                        shard_threads_->Receive());
    if (!incoming.has_value()) return absl::OkStatus();
    const wire::Header& header = incoming->message.header;
    if (!header.has_stats_reply()) continue;
    const wire::StatsReply& reply = header.stats_reply();
    if (incoming->from.instance < answered_at_.size())
      answered_at_[incoming->from.instance] = options_.time.Now();
    if (trace_.is_open()) trace_ << reply.trace() << std::flush;
    core_.OnStats(static_cast<int>(incoming->from.instance),
                  header.view_number(), reply.stats(), options_.time.Now(),
                  &effects_);
  }
}

absl::Status ControlLoop::Perform() {
  ServerCore::Effects effects;
  std::swap(effects, effects_);
  for (const std::string& line : effects.log) spdlog::info("{}", line);
  if (effects.view != nullptr) options_.give_view(effects.view);
  for (const wire::Inspection& inspection : effects.inspections)
    inspector_.Ask(inspection, options_.time.Now());
  if (effects.view != nullptr &&
      (effects.view->proto().state() == wire::FINISHED ||
       effects.view->proto().state() == wire::FAILED)) {
    inspector_.End();
    AnswerInspections();
  }
  if (effects.ask_stats) {
    core_.SetIoUtilisation(io_load_.Update(options_.time.Now()));
    if (options_.coordinator_refused)
      core_.SetCoordinatorRefused(options_.coordinator_refused());
    Message request;
    request.header.mutable_stats_request();
    SendToShardThreads(request);
    if (options_.thread_failure) {
      if (const absl::Status failure = options_.thread_failure();
          !failure.ok()) {
        core_.OnFailure(failure, options_.time.Now(), &effects_);
      }
    }
  }
  if (effects.look_at.has_value()) {
    SL_RETURN_IF_ERROR(
        ConnectTo(options_.core.member.coordinators[*effects.look_at]));
  }
  for (const Message& message : effects.sends)
    (void)coordinator_->Send(message);  // The core repeats what is lost.
  end_ = std::move(effects.end);
  return absl::OkStatus();
}

void ControlLoop::SendToShardThreads(const Message& message) {
  for (int t = 0; t < options_.shard_threads; ++t) {
    // One that has not said a word yet is asked the next time.
    (void)shard_threads_->Send({.kind = PeerId::Kind::kShardThread,
                                .index = options_.core.member.join.index(),
                                .instance = static_cast<uint64_t>(t)},
                               message);
  }
}

}  // namespace slackline
