// DelayedTransport: a Transport whose channels have to pass one slow link, all
// of them together. For experiments: what a worker's config says under
// `conditions { link }`.
//
// Messages wait before the inner channel sends them and after it has received
// them. Who listens is not delayed, and what a channel tells of its link's
// state is not either.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/net/delayed/delay_line.h"
#include "common/net/delayed/link_model.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"

namespace slackline {

// Belongs, with its channels, to one thread at a time. A channel sends what is
// due when it is asked for what it has received.
class DelayedTransport : public Transport {
 public:
  // `inner` outlives this.
  DelayedTransport(Transport& inner, const LinkModel& link,
                   const TimeSource& time);

  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override {
    return inner_.Listen(options);
  }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override;
  std::vector<std::string> EndpointsAt(const Place& place) override {
    return inner_.EndpointsAt(place);
  }
  std::shared_ptr<PayloadMemory> memory() override { return inner_.memory(); }

 private:
  Transport& inner_;
  const TimeSource time_;
  const std::shared_ptr<LinkDirection> out_;
  const std::shared_ptr<LinkDirection> in_;
};

}  // namespace slackline
