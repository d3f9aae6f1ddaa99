// ProcessTransport: all that the messages of a process go through. The one
// place in the product where transports are made.
#pragma once

#include <memory>
#include <optional>

#include "common/keys/key_watch.h"
#include "common/keys/secret.h"
#include "common/net/transport.h"

namespace slackline {

// Thread-safe. Outlives all that its transports have made.
class ProcessTransport {
 public:
  // Everything is plain without a source: insecure: true. `say` is told when
  // keys are exchanged, by a thread of its own; it may be empty.
  explicit ProcessTransport(const std::optional<KeySource>& source,
                            KeyWatch::Say say = {});

  // What goes over the network, and within the process.
  Transport& network() { return *network_; }
  // What also goes through the memory of this host.
  Transport& all() { return *all_; }

  // The present Credentials::ring.
  std::optional<Secret> ring() const;

 private:
  const std::unique_ptr<KeyWatch> key_watch_;  // nullptr without a source.
  const std::unique_ptr<Transport> network_;
  const std::unique_ptr<Transport> all_;  // It wraps network_.
};

}  // namespace slackline
