#include "common/net/zmq/zmq_monitor.h"

#include <cstddef>
#include <cstring>

#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// Who ends a connection sooner does not do so because he heard nothing.
constexpr absl::Duration kDroppedAtOnce = absl::Seconds(5);

}  // namespace

void Monitor(zmq::socket_t& socket, const std::string& endpoint, int events,
             zmq::socket_t& monitor) {
  if (zmq_socket_monitor(socket.handle(), endpoint.c_str(), events) != 0)
    throw zmq::error_t();
  monitor.connect(endpoint);
}

void EndMonitor(zmq::socket_t& socket) {
  (void)zmq_socket_monitor(socket.handle(), nullptr, 0);
}

absl::StatusOr<std::optional<MonitorEvent>> ReceiveEvent(ZmqSocket& monitor) {
  zmq::message_t frame;
  SL_ASSIGN_OR_RETURN(const bool received, monitor.ReceiveFrame(&frame));
  if (!received) return std::nullopt;
  // 16 bits of event, 32 bits of value; the endpoint in a second frame.
  MonitorEvent event;
  SL_CHECK(
      frame.size() >= sizeof(event.kind) + sizeof(event.value) && frame.more(),
      "an event of a ZeroMQ monitor is too short");
  std::memcpy(&event.kind, frame.data(), sizeof(event.kind));
  std::memcpy(&event.value,
              static_cast<const std::byte*>(frame.data()) + sizeof(event.kind),
              sizeof(event.value));
  SL_RETURN_IF_ERROR(monitor.ReceiveFrame(&frame).status());
  event.endpoint = frame.to_string();
  return event;
}

LinkMonitor::LinkMonitor(zmq::context_t& context, ZmqSocket& dealer,
                         const std::string& endpoint,
                         absl::Duration attempt_max)
    : socket_(context, ZMQ_PAIR, dealer.options()), attempt_max_(attempt_max) {
  Monitor(dealer.raw(), endpoint,
          ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
              ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CLOSED |
              ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
              ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
              ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
          socket_.raw());
}

absl::StatusOr<std::optional<LinkState>> LinkMonitor::Receive() {
  std::optional<LinkState> state;
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<MonitorEvent> event,
                        ReceiveEvent(socket_));
    if (!event.has_value()) return state;
    const absl::Time now = TimeSource().Now();
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
        state = LinkState::kConnected;
        connected_at_ = now;
        break;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        state = LinkState::kUp;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        state = LinkState::kRefused;
        break;
      // After a while: nobody has spoken, as of a process that is stopped.
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        if (now - connected_at_ < kDroppedAtOnce) state = LinkState::kDropped;
        break;
      case ZMQ_EVENT_CONNECT_DELAYED:
        attempt_at_ = now;
        break;
      case ZMQ_EVENT_CLOSED:
        // The attempt has failed. A refusal takes a round trip; what takes as
        // long as it may is a partition, or a host that is down.
        if (now - attempt_at_ < attempt_max_ * 0.9 ||
            attempt_at_ == absl::InfinitePast()) {
          state = LinkState::kGone;
        }
        attempt_at_ = absl::InfinitePast();
        break;
      default:
        break;
    }
  }
}

}  // namespace slackline
