// ZmqListener: a ROUTER socket that answers many peers. Of this folder alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/keys/live_keys.h"
#include "common/message.h"
#include "common/net/transport.h"
#include "common/net/zmq/key_check.h"
#include "common/net/zmq/tcp_peers.h"
#include "common/net/zmq/zmq_monitor.h"
#include "common/net/zmq/zmq_socket.h"
#include "proto/run.pb.h"

namespace slackline {

// What a routing id has beyond the text of the PeerId begins with it.
inline constexpr char kSuffixMark = '#';

class ZmqListener : public Listener {
 public:
  // Everybody is heard without keys; with keys `key_check` is there. `suffix`
  // is its own in this process.
  ZmqListener(zmq::context_t& context, const std::string& suffix,
              std::shared_ptr<const LiveKeys> keys, const KeyCheck* key_check,
              const ChannelOptions& options);
  ~ZmqListener() override {
    if (monitor_.has_value()) EndMonitor(socket_.raw());
  }

  absl::StatusOr<std::string> Bind(const std::string& endpoint) override;
  absl::StatusOr<std::optional<Incoming>> Receive() override;
  absl::Status Send(const PeerId& to, const Message& message) override;
  ChannelCounts counts() const override;
  std::vector<int> Descriptors() const override;
  absl::StatusOr<absl::Duration> WaitMax() override;

  // Why a connection was refused, in words and to be counted.
  struct Refusal {
    std::string why;
    run::Refusals counted;
  };

 private:
  void SendError(const zmq::message_t& to, const std::string& error);
  // Where to reach a peer. Null if it is unknown.
  const std::string* RouteTo(const PeerId& peer) const;
  void Learn(const PeerId& peer, const std::string& routing_id, bool within);
  void Forget(const PeerId& peer);
  // Takes in which connections have begun and ended.
  absl::Status ReceiveConnections();
  // Goes over to new keys, if there are.
  absl::Status FollowKeys();
  absl::Status BindAgain(const std::string& endpoint);
  // Why the sender of this header frame may not say that; empty: it may. Who
  // only has not gone over to new keys yet is not to be `told`, and repeats it
  // when he has.
  std::string WhyRefused(zmq::message_t& header, const Incoming& incoming,
                         bool* told);

  ZmqSocket socket_;
  zmq::context_t& context_;
  const std::shared_ptr<const LiveKeys> keys_;
  int64_t generation_ = 0;  // The generation of the keys that socket_ has.
  absl::Time followed_at_ = absl::InfinitePast();  // They were exchanged then.
  const KeyCheck* const key_check_;
  std::vector<std::string> bound_;  // Where it listens, if there are keys.
  const std::string domain_;        // The key check knows its peers by it.
  // What was wrong with the connection that ends next. It is counted when it
  // ends, since only then is known whose it was.
  std::optional<Refusal> refusal_;
  bool ends_silent_ = false;  // The one that ends next has shown no key.
  const std::string monitor_endpoint_;
  std::optional<ZmqSocket> monitor_;  // Watches socket_; from Bind() to tcp on.
  TcpPeers tcp_peers_;
  ChannelCounts counts_;
  // Routes are in two generations: once the first is full it becomes the
  // second.
  struct Route {
    std::string id;
    bool within = false;  // It is of this process, and needs no key.
  };
  std::map<PeerId, Route> routes_;
  std::map<PeerId, Route> older_routes_;
};

}  // namespace slackline
