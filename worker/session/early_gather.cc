#include "worker/session/early_gather.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/process/join_request.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr absl::Duration kRepeat = absl::Milliseconds(500);

}  // namespace

EarlyGather::EarlyGather(const Options& options)
    : options_(options),
      endpoint_(CoordinatorEndpointAt(options.config, 0)),
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {}

absl::StatusOr<std::unique_ptr<EarlyGather>> EarlyGather::Connect(
    const Options& options) {
  std::unique_ptr<EarlyGather> early(new EarlyGather(options));
  const PeerId self{.kind = PeerId::Kind::kObserver,
                    .index = static_cast<int32_t>(options.rank),
                    .instance = RandomToken()};
  SL_ASSIGN_OR_RETURN(early->channel_,
                      early->transport_.Connect(self, early->endpoint_,
                                                {.linger = absl::ZeroDuration(),
                                                 .watch_link = true}));
  early->poller_.Add(*early->channel_);
  early->poller_.Add(early->waker_);
  return early;
}

absl::Status EarlyGather::interrupted() const {
  const MutexLock lock(mutex_);
  return reason_.empty() ? absl::OkStatus() : absl::CancelledError(reason_);
}

void EarlyGather::Interrupt(const std::string& reason) {
  {
    const MutexLock lock(mutex_);
    reason_ = reason;
  }
  waker_.Wake();
}

absl::StatusOr<Session::Gathered> EarlyGather::Gather(uint32_t number,
                                                      const Payload& payload) {
  Message message;
  wire::Call& call = *message.header.mutable_call();
  call.set_call_id(++last_call_id_);
  call.mutable_gather()->set_number(number);
  call.mutable_gather()->set_rank(static_cast<int32_t>(options_.rank));
  if (!payload.empty()) message.payloads.push_back(payload);
  const int32_t timeout_ms = options_.config.limits().start_timeout_ms();
  const absl::Time give_up_at =
      options_.time.Now() + absl::Milliseconds(timeout_ms);
  absl::Time send_at = options_.time.Now();
  std::string obstacle;
  while (true) {
    SL_RETURN_IF_ERROR(interrupted());
    SL_ASSIGN_OR_RETURN(const std::optional<LinkState> link,
                        channel_->ReceiveLinkState());
    if (link.has_value()) {
      const bool was_up = std::exchange(up_, *link == LinkState::kUp);
      if (was_up && *link == LinkState::kGone) {
        return absl::UnavailableError(
            absl::StrCat("the coordinator at ", endpoint_,
                         " is gone; that server died or the job has ended"));
      }
      if (!was_up) send_at = options_.time.Now();
    }
    while (true) {
      SL_ASSIGN_OR_RETURN(const std::optional<Message> received,
                          channel_->Receive());
      if (!received.has_value()) break;
      const wire::CallReply& reply = received->header.call_reply();
      if (!received->header.has_call_reply() ||
          reply.call_id() != call.call_id()) {
        continue;
      }
      if (reply.code() == wire::RETRY) {
        obstacle = reply.error();
        continue;
      }
      if (reply.code() != wire::OK) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the coordinator refused a collective: ", reply.error()));
      }
      const auto& ranks = reply.gathered().rank();
      if (static_cast<size_t>(ranks.size()) != received->payloads.size()) {
        return absl::InternalError(
            absl::StrCat("a collective has brought ", received->payloads.size(),
                         " payloads of ", ranks.size(), " workers"));
      }
      return Session::Gathered{.ranks = {ranks.begin(), ranks.end()},
                               .payloads = received->payloads};
    }
    const absl::Time now = options_.time.Now();
    if (now >= give_up_at) {
      const std::string worker =
          absl::StrCat("worker ", static_cast<int>(options_.rank));
      if (obstacle.empty()) {
        return absl::DeadlineExceededError(absl::StrCat(
            worker, " heard nothing from the coordinator at ", endpoint_,
            " within ", timeout_ms,
            " ms; is slackline_server --index=0 of this config running "
            "there?"));
      }
      return absl::DeadlineExceededError(absl::StrCat(
          worker, " ", obstacle, " for ", timeout_ms,
          " ms; look at their logs, or raise limits { start_timeout_ms }"));
    }
    if (up_ && now >= send_at) {
      SL_RETURN_IF_ERROR(channel_->Send(message));
      send_at = now + kRepeat;
    }
    SL_RETURN_IF_ERROR(poller_.Wait(
        std::max(std::min(give_up_at, up_ ? send_at : give_up_at) - now,
                 absl::ZeroDuration())));
    waker_.Drain();
  }
}

}  // namespace slackline
