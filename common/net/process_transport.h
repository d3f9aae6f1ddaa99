// ProcessTransport: all that the messages of a process go through. The one
// place in the product where transports are made.
#pragma once

#include <optional>

#include "common/keys/credentials.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/transport.h"
#include "common/net/zmq/zmq_transport.h"

namespace slackline {

// Thread-safe. Outlives all that its transports have made.
class ProcessTransport {
 public:
  // Without credentials everything is plain: insecure: true.
  explicit ProcessTransport(const std::optional<Credentials>& credentials);

  // Over the network, and within the process.
  Transport& network() { return network_; }
  // Also through the memory of this host.
  Transport& all() { return all_; }

 private:
  ZmqTransport network_;
  ShmTransport all_;
};

}  // namespace slackline
