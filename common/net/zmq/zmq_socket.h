// What the sockets of ZeroMQ have in common, whatever they are for: frames into
// messages and back, options, and what ZeroMQ's errors mean. Of this folder
// alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <zmq.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/credentials.h"
#include "common/keys/live_keys.h"
#include "common/message.h"
#include "common/net/transport.h"

namespace slackline {

// A message in a row of this many malformed ones is left for the next call.
inline constexpr int kMalformedPerCall = 64;
// Endpoints of this kind need no key.
inline constexpr char kWithin[] = "inproc://";
inline constexpr char kFilesHint[] =
    "the process has as many files and sockets open as it may; raise the hard "
    "limit (ulimit -Hn, or LimitNOFILE= of its service), or start fewer shard "
    "threads per process";

absl::Status CallFailed(const std::string& call, const std::string& hint,
                        const zmq::error_t& error);
// What to do about an error of zmq_bind(3) or zmq_connect(3); may be empty.
std::string BindHint(int error);
std::string ConnectHint(int error);

// ZeroMQ knows IPv6 addresses only where it is told to; and then it prefers
// those of a name, at which nobody may listen.
void AllowIpv6(const std::string& endpoint, zmq::socket_t* socket);

// How long a thread may wait that has to see when its keys are exchanged.
absl::Duration NextLookAt(const LiveKeys& keys);
int WholeMilliseconds(absl::Duration duration);

class PayloadTag;

// What all sockets have in common.
class ZmqSocket {
 public:
  ZmqSocket(zmq::context_t& context, int type, const ChannelOptions& options);
  ~ZmqSocket();

  zmq::socket_t& raw() { return socket_; }
  const ChannelOptions& options() const { return options_; }

  // To be called before it connects, or binds.
  void ConnectWith(const Credentials& credentials);
  void ListenWith(const Credentials& credentials);

  int Descriptor() const { return socket_.get(zmq::sockopt::fd); }
  // Looks for input, and has the socket take in what has happened meanwhile.
  absl::StatusOr<bool> HasInput();
  absl::StatusOr<absl::Duration> WaitMax();

  // Bytes of the last message that ReceiveBody() took, with the headers of its
  // frames.
  int64_t bytes_on_wire() const { return bytes_on_wire_; }

  size_t payloads_max() const {
    return static_cast<size_t>(options_.payloads_max);
  }
  // False if no frame is there.
  absl::StatusOr<bool> ReceiveFrame(zmq::message_t* frame);
  // Takes all frames of a message from its header frame on. `*fault` says what
  // is wrong with it, empty if nothing.
  absl::Status ReceiveBody(const zmq::message_t& header, Message* message,
                           std::string* fault);
  // False if the queue is full. `frame` is consumed on true.
  absl::StatusOr<bool> SendFrame(zmq::message_t& frame, bool more);
  absl::StatusOr<bool> SendFirstFrame(zmq::message_t& frame, bool more);
  // `first`: no routing id has been sent before.
  absl::StatusOr<bool> SendBody(const Message& message, bool first);

 private:
  const ChannelOptions options_;
  zmq::socket_t socket_;
  bool encrypted_ = false;
  std::unique_ptr<PayloadTag> tag_;  // nullptr unless it is encrypted.
  // The last call was a receive that found nothing: every message since then
  // shows in the file descriptor.
  bool drained_ = false;
  int64_t bytes_on_wire_ = 0;
};

}  // namespace slackline
