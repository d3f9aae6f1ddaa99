// What ZeroMQ tells of the connections of a socket: zmq_socket_monitor(3). Of
// this folder alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <zmq.hpp>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/link_state.h"
#include "common/net/zmq/zmq_socket.h"

namespace slackline {

struct MonitorEvent {
  uint16_t kind = 0;
  uint32_t value = 0;
  std::string endpoint = {};
};

// The events of `socket` go to `monitor`, a PAIR socket. Throws zmq::error_t.
void Monitor(zmq::socket_t& socket, const std::string& endpoint, int events,
             zmq::socket_t& monitor);

// Before the monitor of `socket` ends. A socket that is closed goes on for a
// while, and the thread that moves all bytes would wait for ever for somebody
// to take its events.
void EndMonitor(zmq::socket_t& socket);

// nullopt if there is none.
absl::StatusOr<std::optional<MonitorEvent>> ReceiveEvent(ZmqSocket& monitor);

// Tells whether a process listens at the other end of a DEALER socket.
class LinkMonitor {
 public:
  // Before `dealer` connects. An attempt to connect takes at most attempt_max.
  LinkMonitor(zmq::context_t& context, ZmqSocket& dealer,
              const std::string& endpoint, absl::Duration attempt_max);

  ZmqSocket& socket() { return socket_; }
  const ZmqSocket& socket() const { return socket_; }
  absl::StatusOr<std::optional<LinkState>> Receive();

 private:
  ZmqSocket socket_;
  const absl::Duration attempt_max_;
  absl::Time attempt_at_ = absl::InfinitePast();  // The last one began.
  absl::Time connected_at_ = absl::InfinitePast();
};

}  // namespace slackline
