#include "common/net/zmq/zmq_listener.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/keys/authority.h"
#include "common/metrics/refusals.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// ZeroMQ allows 255 bytes in a routing id.
constexpr size_t kSuffixMax = 64;
// In which a connection has to have shown its key, so that those that say
// nothing do not hold descriptors.
constexpr absl::Duration kHandshakeMax = absl::Seconds(10);
// How long a listener tries to get its place back, when it binds anew.
constexpr absl::Duration kBindAgainMax = absl::Seconds(2);
// So long after an exchange of keys, who still says something on a connection
// of before is on his way to the new ones.
constexpr absl::Duration kLateMax = absl::Seconds(10);

// False if it is none of ours: also for other spellings of a PeerId, such as
// leading zeros.
bool ParseRoutingId(const std::string& routing_id, PeerId* peer) {
  const size_t mark = routing_id.find(kSuffixMark);
  const std::string text = routing_id.substr(0, mark);
  if (mark != std::string::npos) {
    const size_t suffix = routing_id.size() - mark - 1;
    if (suffix < 1 || suffix > kSuffixMax) return false;
  }
  return PeerId::FromString(text, peer) && peer->ToString() == text;
}

// Of an event ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL.
ZmqListener::Refusal RefusalOf(uint32_t value, bool has_keys) {
  ZmqListener::Refusal refusal;
  const bool other_mechanism =
      value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH;
  if (other_mechanism && !has_keys) {
    refusal.counted.set_other_key(1);
    refusal.why = "it has a key, and this process has insecure: true";
  } else if (other_mechanism) {
    refusal.counted.set_no_key(1);
    refusal.why = "it has no key";
  } else if (has_keys && value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC) {
    refusal.counted.set_other_key(1);
    refusal.why =
        "it has the key of another job, or what it sent was changed under way";
  } else {
    refusal.counted.set_foreign(1);
    refusal.why = has_keys ? "it does not speak ZeroMQ with a key"
                           : "it does not speak ZeroMQ";
  }
  return refusal;
}

// Of an event ZMQ_EVENT_ACCEPT_FAILED of a Unix socket. ZeroMQ gives no error
// of its own where it turns away a process of another user.
bool IsWithoutRoom(uint32_t error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS ||
         error == ENOMEM;
}

// What a frame of an admitted peer has with it: KeyCheck::UserIdOf.
constexpr char kUserId[] = "User-Id";

// Threads of this process have no connection, and show no key: nothing of one
// is with their frames. `header` is a frame that the peer has sent. The frame
// with the routing id is not: ZeroMQ makes it, and libzmq 4.3.4 leaves out
// whose it is (router.cpp, xhas_in) if the socket was asked for its events
// while the message was there.
bool IsFromWithin(zmq::message_t& header) {
  return zmq_msg_get(header.handle(), ZMQ_SRCFD) < 0 &&
         zmq_msg_gets(header.handle(), kUserId) == nullptr &&
         zmq_msg_gets(header.handle(), "Socket-Type") == nullptr;
}

}  // namespace

ZmqListener::ZmqListener(zmq::context_t& context, const std::string& suffix,
                         std::shared_ptr<const LiveKeys> keys,
                         const KeyCheck* key_check,
                         const ChannelOptions& options)
    : socket_(context, ZMQ_ROUTER, options),
      context_(context),
      keys_(std::move(keys)),
      key_check_(key_check),
      domain_(suffix),
      monitor_endpoint_(absl::StrCat("inproc://connections-", suffix)),
      tcp_peers_({.unread_bytes_max = options.unread_bytes_max,
                  .shows_key = keys_ != nullptr}) {
  zmq::socket_t& router = socket_.raw();
  // A send to nobody is an error, not silence; and a peer that has come back
  // replaces its old connection, which may not have ended here yet.
  router.set(zmq::sockopt::router_mandatory, true);
  router.set(zmq::sockopt::router_handover, true);
  router.set(zmq::sockopt::backlog, 1024);
  // The bound is in bytes, by tcp_peers_. A bound in messages makes ZeroMQ stop
  // to read, and then libzmq 4.3.4 ends the process if the peer has sent a PING
  // and resets its connection.
  router.set(zmq::sockopt::rcvhwm, 0);
  router.set(zmq::sockopt::maxmsgsize,
             std::min(options.message_bytes_max, options.unread_bytes_max));
  if (keys_ != nullptr) {
    const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
    generation_ = held->generation;
    socket_.ListenWith(held->credentials);
    router.set(zmq::sockopt::zap_domain, domain_);
  }
  router.set(zmq::sockopt::handshake_ivl, WholeMilliseconds(kHandshakeMax));
  // Who may use ipc could as well kill this process.
  const uid_t self = geteuid();
  if (zmq_setsockopt(router.handle(), ZMQ_IPC_FILTER_UID, &self,
                     sizeof(self)) != 0) {
    throw zmq::error_t();
  }
}

ChannelCounts ZmqListener::counts() const {
  ChannelCounts counts = counts_;
  if (key_check_ != nullptr) {
    const KeyCheck::Refusals refused = key_check_->RefusalsIn(domain_);
    counts.refused.set_other_key(counts.refused.other_key() +
                                 static_cast<uint64_t>(refused.count));
    if (refused.count > 0 && RefusedCount(counts_.refused) == 0) {
      counts.last_refused = absl::StrCat(
          refused.last, ": it has a key of its own that is none of this job");
    }
  }
  counts.malformed += tcp_peers_.ended_count();
  counts.overruns += tcp_peers_.ended_count();
  counts.last_overrun = tcp_peers_.last_ended();
  return counts;
}

std::vector<int> ZmqListener::Descriptors() const {
  if (!monitor_.has_value()) return {socket_.Descriptor()};
  return {socket_.Descriptor(), monitor_->Descriptor()};
}

absl::Status ZmqListener::FollowKeys() {
  if (keys_ == nullptr || keys_->generation() == generation_)
    return absl::OkStatus();
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  generation_ = held->generation;
  followed_at_ = TimeSource().Now();
  tcp_peers_.ExpectSilentEnds(followed_at_);
  // Nothing is sent any more to who has shown an old key only.
  for (auto* const routes : {&routes_, &older_routes_}) {
    std::erase_if(*routes,
                  [](const auto& route) { return !route.second.within; });
  }
  for (const std::string& endpoint : bound_) {
    try {
      socket_.ListenWith(held->credentials);
      socket_.raw().unbind(endpoint);
    } catch (const zmq::error_t& error) {
      return CallFailed(absl::StrCat("give up ", endpoint), "", error);
    }
    SL_RETURN_IF_ERROR(BindAgain(endpoint));
  }
  return absl::OkStatus();
}

absl::Status ZmqListener::BindAgain(const std::string& endpoint) {
  // ZeroMQ gives the place up in another thread.
  const absl::Time end = TimeSource().Now() + kBindAgainMax;
  while (true) {
    try {
      socket_.raw().bind(endpoint);
      return absl::OkStatus();
    } catch (const zmq::error_t& error) {
      if (error.num() != EADDRINUSE || TimeSource().Now() > end) {
        return CallFailed(absl::StrCat("bind to ", endpoint, " with new keys"),
                          BindHint(error.num()), error);
      }
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
}

absl::StatusOr<absl::Duration> ZmqListener::WaitMax() {
  SL_RETURN_IF_ERROR(FollowKeys());
  if (monitor_.has_value()) SL_RETURN_IF_ERROR(ReceiveConnections());
  SL_ASSIGN_OR_RETURN(absl::Duration may_wait, socket_.WaitMax());
  if (keys_ != nullptr) may_wait = std::min(may_wait, NextLookAt(*keys_));
  if (tcp_peers_.empty()) return may_wait;
  const absl::Time now = TimeSource().Now();
  tcp_peers_.Look(now);
  return std::min(may_wait, tcp_peers_.NextLook() - now);
}

absl::Status ZmqListener::ReceiveConnections() {
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<MonitorEvent> event,
                        ReceiveEvent(*monitor_));
    if (!event.has_value()) return absl::OkStatus();
    switch (event->kind) {
      case ZMQ_EVENT_ACCEPTED:
        tcp_peers_.OnAccepted(static_cast<int>(event->value));
        break;
      // The end of the connection follows at once.
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        refusal_ = RefusalOf(event->value, keys_ != nullptr);
        break;
      // Who has no key ends the connection when he sees that he needs one; who
      // only looks whether somebody listens does, too; who says nothing is
      // ended.
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        ends_silent_ = true;
        break;
      case ZMQ_EVENT_ACCEPT_FAILED:
        if (!absl::StartsWith(event->endpoint, "ipc://") ||
            IsWithoutRoom(event->value)) {
          break;
        }
        counts_.refused.set_other_user(counts_.refused.other_user() + 1);
        counts_.last_refused = absl::StrCat(
            "a process of another user of this host, at a Unix socket of user ",
            geteuid());
        break;
      default: {
        const std::string who =
            tcp_peers_.OnEnded(static_cast<int>(event->value));
        const std::optional<Refusal> refusal =
            std::exchange(refusal_, std::nullopt);
        const bool silent = std::exchange(ends_silent_, false);
        if (refusal.has_value()) {
          FoldRefusals(refusal->counted, &counts_.refused);
          counts_.last_refused = absl::StrCat(who, ": ", refusal->why);
        } else if (silent) {
          counts_.refused.set_silent(counts_.refused.silent() + 1);
          counts_.last_silent = who;
        }
        break;
      }
    }
  }
}

std::string ZmqListener::WhyRefused(zmq::message_t& header,
                                    const Incoming& incoming, bool* told) {
  if (keys_ == nullptr || IsFromWithin(header)) return "";
  // ZeroMQ lets everybody in when nobody checks keys, and believes what he says
  // of himself.
  if (!key_check_->alive()) return "has a key that nobody has checked";
  const char* const id_of_user = zmq_msg_gets(header.handle(), kUserId);
  KeyCheck::User user;
  if (id_of_user == nullptr || !KeyCheck::UserOf(id_of_user, &user))
    return "has no key";
  if (user.generation != generation_) {
    *told = false;
    return "has shown a key that has been exchanged since";
  }
  const std::string why =
      MayBe(user.holder, incoming.from)
          ? WhyNotSay(user.holder, incoming.message.header)
          : absl::StrCat("may not be ", incoming.from.ToString());
  return why.empty() ? ""
                     : absl::StrCat("who has the key of ",
                                    user.holder.ToString(), " ", why);
}

absl::StatusOr<std::string> ZmqListener::Bind(const std::string& endpoint) {
  try {
    if (absl::StartsWith(endpoint, "tcp://") && !monitor_.has_value()) {
      monitor_.emplace(context_, ZMQ_PAIR, socket_.options());
      // ZeroMQ's threads would wait for room in a queue that is full.
      monitor_->raw().set(zmq::sockopt::rcvhwm, 0);
      Monitor(socket_.raw(), monitor_endpoint_,
              ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED |
                  ZMQ_EVENT_ACCEPT_FAILED |
                  ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                  ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
              monitor_->raw());
    }
    AllowIpv6(endpoint, &socket_.raw());
    socket_.raw().bind(endpoint);
    const std::string bound = socket_.raw().get(zmq::sockopt::last_endpoint);
    // Within the process there are no keys.
    if (keys_ != nullptr && !absl::StartsWith(bound, kWithin))
      bound_.push_back(bound);
    return bound;
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("bind to ", endpoint), BindHint(error.num()),
                      error);
  }
}

absl::StatusOr<std::optional<Listener::Incoming>> ZmqListener::Receive() {
  SL_RETURN_IF_ERROR(FollowKeys());
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t id;
    SL_ASSIGN_OR_RETURN(const bool received, socket_.ReceiveFrame(&id));
    if (!received) return std::nullopt;
    Incoming incoming;
    std::string fault;
    zmq::message_t header;
    if (!id.more()) {
      fault = "no header frame";
    } else {
      SL_ASSIGN_OR_RETURN(const bool complete, socket_.ReceiveFrame(&header));
      SL_CHECK(complete, "ZeroMQ delivered part of a message");
      SL_RETURN_IF_ERROR(
          socket_.ReceiveBody(header, &incoming.message, &fault));
      if (!tcp_peers_.empty()) {
        tcp_peers_.OnReceived(zmq_msg_get(header.handle(), ZMQ_SRCFD),
                              socket_.bytes_on_wire());
      }
    }
    const std::string text = id.to_string();
    if (fault.empty() && !ParseRoutingId(text, &incoming.from)) {
      // Without the id: one that ZeroMQ has made up must not get known, since
      // libzmq 4.3.4 ends the process if a peer takes the next one.
      fault =
          "the routing id is not a peer id such as worker.2.17, with or "
          "without a suffix such as #1a";
    }
    if (fault.empty()) {
      bool told = true;
      const std::string refused = WhyRefused(header, incoming, &told);
      if (refused.empty()) {
        Learn(incoming.from, text, IsFromWithin(header));
        return incoming;
      }
      // Nor is it a refusal for a while that he is late.
      if (!told && TimeSource().Now() - followed_at_ < kLateMax) continue;
      counts_.refused.set_not_allowed(counts_.refused.not_allowed() + 1);
      counts_.last_refused =
          absl::StrCat(incoming.from.ToString(), ": ", refused);
      if (told) SendError(id, refused);
      continue;
    }
    ++counts_.malformed;
    SendError(id, absl::StrCat("malformed message: ", fault));
  }
  return std::nullopt;
}

const std::string* ZmqListener::RouteTo(const PeerId& peer) const {
  for (const auto* const routes : {&routes_, &older_routes_}) {
    const auto route = routes->find(peer);
    if (route != routes->end()) return &route->second.id;
  }
  return nullptr;
}

void ZmqListener::Learn(const PeerId& peer, const std::string& routing_id,
                        bool within) {
  const auto known = routes_.find(peer);
  if (known != routes_.end()) {
    known->second.within = within;
    if (known->second.id != routing_id) known->second.id = routing_id;
    return;
  }
  if (routes_.size() >= static_cast<size_t>(socket_.options().peers_max)) {
    older_routes_ = std::move(routes_);
    routes_.clear();
  }
  routes_[peer] = {.id = routing_id, .within = within};
}

void ZmqListener::Forget(const PeerId& peer) {
  routes_.erase(peer);
  older_routes_.erase(peer);
}

void ZmqListener::SendError(const zmq::message_t& to,
                            const std::string& error) {
  Message reply;
  reply.header.mutable_error_reply()->set_error(error);
  zmq::message_t id(to.data(), to.size());
  // Whoever sends garbage and does not wait for the answer misses it.
  const absl::StatusOr<bool> reached = socket_.SendFrame(id, true);
  if (reached.ok() && *reached) socket_.SendBody(reply, false).IgnoreError();
}

absl::Status ZmqListener::Send(const PeerId& to, const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, socket_.options()));
  const std::string* const route = RouteTo(to);
  absl::StatusOr<bool> reached = absl::NotFoundError("not heard of yet");
  if (route != nullptr) {
    zmq::message_t id(route->data(), route->size());
    reached = socket_.SendFirstFrame(id, true);
  }
  if (absl::IsNotFound(reached.status())) {
    Forget(to);
    ++counts_.dropped;
    return absl::NotFoundError(absl::StrCat(
        "send to ", to.ToString(),
        ": it is not connected (not yet, or it has ended); message dropped"));
  }
  if (!reached.ok()) return Annotate(reached.status(), to.ToString());
  if (!*reached) {
    ++counts_.dropped;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", to.ToString(), ": its queue is full (",
        socket_.options().send_queue_max,
        " messages), it reads too slowly or not at all; message dropped"));
  }
  const absl::StatusOr<bool> sent = socket_.SendBody(message, false);
  if (!sent.ok()) return Annotate(sent.status(), to.ToString());
  return absl::OkStatus();
}

}  // namespace slackline
