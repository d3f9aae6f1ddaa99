#include "common/net/zmq/zmq_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

ZmqChannel::ZmqChannel(zmq::context_t& context, const std::string& routing_id,
                       const std::string& monitor_endpoint,
                       const std::string& endpoint,
                       std::shared_ptr<const LiveKeys> keys,
                       const ChannelOptions& options)
    : endpoint_(endpoint),
      keys_(std::move(keys)),
      socket_(context, ZMQ_DEALER, options) {
  zmq::socket_t& dealer = socket_.raw();
  if (keys_ != nullptr) {
    const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
    generation_ = held->generation;
    socket_.ConnectWith(held->credentials);
  }
  dealer.set(zmq::sockopt::routing_id, routing_id);
  // Try again soon at first, since processes start together, then less often.
  dealer.set(zmq::sockopt::reconnect_ivl, 20);
  dealer.set(zmq::sockopt::reconnect_ivl_max, 1000);
  dealer.set(zmq::sockopt::connect_timeout,
             WholeMilliseconds(options.silence_max));
  if (options.watch_link)
    monitor_.emplace(context, socket_, monitor_endpoint, options.silence_max);
  AllowIpv6(endpoint, &dealer);
  dealer.connect(endpoint);
}

std::vector<int> ZmqChannel::Descriptors() const {
  if (!monitor_.has_value()) return {socket_.Descriptor()};
  return {socket_.Descriptor(), monitor_->socket().Descriptor()};
}

absl::Status ZmqChannel::FollowKeys() {
  if (keys_ == nullptr || keys_->generation() == generation_)
    return absl::OkStatus();
  const std::shared_ptr<const LiveKeys::Held> held = keys_->Get();
  generation_ = held->generation;
  if (absl::StartsWith(endpoint_, kWithin)) return absl::OkStatus();
  try {
    socket_.raw().disconnect(endpoint_);
    socket_.ConnectWith(held->credentials);
    socket_.raw().connect(endpoint_);
  } catch (const zmq::error_t& error) {
    return CallFailed(absl::StrCat("connect to ", endpoint_, " with new keys"),
                      ConnectHint(error.num()), error);
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> ZmqChannel::WaitMax() {
  SL_RETURN_IF_ERROR(FollowKeys());
  SL_ASSIGN_OR_RETURN(absl::Duration may_wait, socket_.WaitMax());
  if (keys_ != nullptr) may_wait = std::min(may_wait, NextLookAt(*keys_));
  if (!monitor_.has_value()) return may_wait;
  SL_ASSIGN_OR_RETURN(const absl::Duration of_monitor,
                      monitor_->socket().WaitMax());
  return std::min(may_wait, of_monitor);
}

absl::StatusOr<std::optional<Message>> ZmqChannel::Receive() {
  SL_RETURN_IF_ERROR(FollowKeys());
  for (int i = 0; i < kMalformedPerCall; ++i) {
    zmq::message_t header;
    SL_ASSIGN_OR_RETURN(const bool received, socket_.ReceiveFrame(&header));
    if (!received) return std::nullopt;
    Message message;
    std::string fault;
    SL_RETURN_IF_ERROR(socket_.ReceiveBody(header, &message, &fault));
    if (fault.empty()) return message;
    ++counts_.malformed;
  }
  return std::nullopt;
}

absl::Status ZmqChannel::Send(const Message& message) {
  SL_RETURN_IF_ERROR(CheckBounds(message, socket_.options()));
  const absl::StatusOr<bool> sent = socket_.SendBody(message, true);
  if (!sent.ok()) return Annotate(sent.status(), endpoint_);
  if (!*sent) {
    ++counts_.dropped;
    return absl::ResourceExhaustedError(absl::StrCat(
        "send to ", endpoint_, ": the queue is full (",
        socket_.options().send_queue_max,
        " messages), nobody reads at the other end; message dropped"));
  }
  return absl::OkStatus();
}

}  // namespace slackline
