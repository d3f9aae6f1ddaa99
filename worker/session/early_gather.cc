#include "worker/session/early_gather.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/cluster_config.h"
#include "common/membership/refused.h"
#include "common/process/join_request.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr absl::Duration kRepeat = absl::Milliseconds(500);

}  // namespace

EarlyGather::EarlyGather(const Options& options)
    : options_(options),
      poller_(Poller::Options{.spin_max = absl::ZeroDuration()}) {}

absl::StatusOr<std::unique_ptr<EarlyGather>> EarlyGather::Connect(
    Transport& network, const Options& options) {
  std::unique_ptr<EarlyGather> early(new EarlyGather(options));
  const PeerId self{.kind = PeerId::Kind::kObserver,
                    .index = static_cast<int32_t>(options.rank),
                    .instance = RandomToken()};
  for (const std::string& endpoint : CoordinatorEndpoints(options.config)) {
    Place& place = early->places_.emplace_back(Place{.endpoint = endpoint});
    SL_ASSIGN_OR_RETURN(
        place.channel,
        network.Connect(self, endpoint,
                        {.linger = absl::ZeroDuration(), .watch_link = true}));
    early->poller_.Add(*place.channel);
  }
  early->poller_.Add(early->waker_);
  return early;
}

absl::StatusOr<bool> EarlyGather::LookAtLinks() {
  bool came_up = false;
  for (Place& place : places_) {
    SL_ASSIGN_OR_RETURN(const std::optional<LinkState> link,
                        place.channel->ReceiveLinkState());
    if (!link.has_value()) continue;
    if (*link == LinkState::kConnected) continue;
    const bool was_up = std::exchange(place.up, *link == LinkState::kUp);
    // Where there are several places another one may follow.
    if (was_up && *link == LinkState::kGone && places_.size() == 1) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", place.endpoint,
                       " is gone; that server died or the job has ended"));
    }
    came_up |= place.up && !was_up;
    if (*link != LinkState::kRefused) {
      place.refused_since = absl::InfiniteFuture();
      continue;
    }
    // Each attempt to connect is refused anew.
    const absl::Time now = options_.time.Now();
    place.refused_since = std::min(place.refused_since, now);
    if (places_.size() == 1 && now - place.refused_since >= kRefusedMax)
      return RefusedStatus(place.endpoint);
  }
  return came_up;
}

absl::StatusOr<std::optional<Message>> EarlyGather::Receive(uint64_t call_id) {
  for (Place& place : places_) {
    while (true) {
      SL_ASSIGN_OR_RETURN(std::optional<Message> received,
                          place.channel->Receive());
      if (!received.has_value()) break;
      if (received->header.has_call_reply() &&
          received->header.call_reply().call_id() == call_id) {
        return received;
      }
    }
  }
  return std::nullopt;
}

bool EarlyGather::any_up() const {
  return absl::c_any_of(places_, [](const Place& place) { return place.up; });
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
  wire::Call call;
  call.mutable_gather()->set_number(number);
  call.mutable_gather()->set_rank(static_cast<int32_t>(options_.rank));
  SL_ASSIGN_OR_RETURN(const Message answer, Ask(std::move(call), payload));
  const auto& ranks = answer.header.call_reply().gathered().rank();
  if (static_cast<size_t>(ranks.size()) != answer.payloads.size()) {
    return absl::InternalError(
        absl::StrCat("a collective has brought ", answer.payloads.size(),
                     " payloads of ", ranks.size(), " workers"));
  }
  return Session::Gathered{.ranks = {ranks.begin(), ranks.end()},
                           .payloads = answer.payloads};
}

absl::StatusOr<int64_t> EarlyGather::Epoch() {
  wire::Call call;
  call.mutable_status();
  SL_ASSIGN_OR_RETURN(const Message answer, Ask(std::move(call), {}));
  return answer.header.call_reply().status().epoch();
}

absl::StatusOr<Message> EarlyGather::Ask(wire::Call call,
                                         const Payload& payload) {
  Message message;
  call.set_call_id(++last_call_id_);
  *message.header.mutable_call() = std::move(call);
  if (!payload.empty()) message.payloads.push_back(payload);
  const int32_t timeout_ms = options_.config.limits().start_timeout_ms();
  const absl::Time give_up_at =
      options_.time.Now() + absl::Milliseconds(timeout_ms);
  absl::Time send_at = options_.time.Now();
  std::string obstacle;
  while (true) {
    SL_RETURN_IF_ERROR(interrupted());
    SL_ASSIGN_OR_RETURN(const bool came_up, LookAtLinks());
    if (came_up) send_at = options_.time.Now();
    while (true) {
      SL_ASSIGN_OR_RETURN(const std::optional<Message> received,
                          Receive(last_call_id_));
      if (!received.has_value()) break;
      const wire::CallReply& reply = received->header.call_reply();
      if (reply.code() == wire::RETRY) {
        obstacle = reply.error();
        continue;
      }
      if (reply.code() != wire::OK) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the coordinator refused a collective: ", reply.error()));
      }
      return *received;
    }
    const absl::Time now = options_.time.Now();
    if (now >= give_up_at) {
      const std::string worker =
          absl::StrCat("worker ", static_cast<int>(options_.rank));
      if (obstacle.empty()) {
        return absl::DeadlineExceededError(absl::StrCat(
            worker, " heard nothing from the coordinator at ",
            absl::StrJoin(places_, " or ",
                          [](std::string* out, const Place& place) {
                            out->append(place.endpoint);
                          }),
            " within ", timeout_ms,
            " ms; is slackline_server --index=0 of this config running "
            "there?"));
      }
      return absl::DeadlineExceededError(absl::StrCat(
          worker, " ", obstacle, " for ", timeout_ms,
          " ms; look at their logs, or raise limits { start_timeout_ms }"));
    }
    if (now >= send_at && any_up()) {
      for (const Place& place : places_) {
        if (place.up) SL_RETURN_IF_ERROR(place.channel->Send(message));
      }
      send_at = now + kRepeat;
    }
    SL_RETURN_IF_ERROR(poller_.Wait(
        std::max(std::min(give_up_at, any_up() ? send_at : give_up_at) - now,
                 absl::ZeroDuration())));
    waker_.Drain();
  }
}

}  // namespace slackline
