// MemoryTransport: a Transport between the threads of one process, without
// sockets. Nothing is lost, no queue is ever full, and messages are handed over
// as they are. Thread-safe.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/host_port.h"
#include "common/mutex.h"
#include "common/net/transport.h"

namespace slackline {

class MemoryTransport : public Transport {
 public:
  // What waits for one receiver.
  class Inbox;

  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override;
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override;
  std::vector<std::string> EndpointsAt(const Place& place) override {
    return {TcpEndpoint(place.host, place.port)};
  }

  // Messages for `endpoint` go to `inbox` from now on, with those that have
  // waited for it. Returns the endpoint, with a number of its own if it ends in
  // ":0".
  std::string Bind(const std::string& endpoint, std::shared_ptr<Inbox> inbox);
  // Never null: where messages wait for who listens there one day.
  std::shared_ptr<Inbox> InboxAt(const std::string& endpoint);

 private:
  Mutex mutex_;
  // By endpoint.
  std::map<std::string, std::shared_ptr<Inbox>> inboxes_
      ABSL_GUARDED_BY(mutex_);
  int ports_ ABSL_GUARDED_BY(mutex_) = 0;  // As many have been given out.
};

}  // namespace slackline
