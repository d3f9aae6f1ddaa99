// ZmqChannel: a DEALER socket, the connection to one Listener. Of this folder
// alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/live_keys.h"
#include "common/link_state.h"
#include "common/message.h"
#include "common/net/transport.h"
#include "common/net/zmq/zmq_monitor.h"
#include "common/net/zmq/zmq_socket.h"

namespace slackline {

class ZmqChannel : public Channel {
 public:
  // Connects.
  ZmqChannel(zmq::context_t& context, const std::string& routing_id,
             const std::string& monitor_endpoint, const std::string& endpoint,
             std::shared_ptr<const LiveKeys> keys,
             const ChannelOptions& options);
  ~ZmqChannel() override {
    if (monitor_.has_value()) EndMonitor(socket_.raw());
  }

  absl::StatusOr<std::optional<Message>> Receive() override;
  absl::Status Send(const Message& message) override;
  absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
    if (!monitor_.has_value()) return std::nullopt;
    return monitor_->Receive();
  }
  ChannelCounts counts() const override { return counts_; }
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

 private:
  // Goes over to new keys, if there are.
  absl::Status FollowKeys();

  const std::string endpoint_;
  const std::shared_ptr<const LiveKeys> keys_;
  int64_t generation_ = 0;  // The generation of the keys that socket_ has.
  ZmqSocket socket_;
  std::optional<LinkMonitor> monitor_;
  ChannelCounts counts_;
};

}  // namespace slackline
