// Messages between processes over ZeroMQ: tcp://, ipc:// and inproc://.
//
// A shard thread or a control thread owns one RouterSocket, and each of its
// peers one DealerSocket. On the wire a message is the header frame (common/
// net/header_codec.h) and then its payload frames. Payloads are not copied
// from kZeroCopyBytes on: a sent one is referenced until the system has taken
// its bytes, a received one refers to the memory ZeroMQ read it into.
//
// Delivery is at most once and in order per connection. A message is lost when
// its connection breaks or its queue is full, so every protocol above repeats
// what was not answered. Connections come back by themselves.
//
// Threads: a socket belongs to one thread, and may be handed to another with
// a synchronising operation in between. A NetContext is thread-safe.
//
// Only files of common/net (and the raw half of benchmarks) include zmq.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/message.h"

namespace zmq {
class context_t;
class message_t;
class socket_t;
}  // namespace zmq

namespace slackline {

// Smaller payloads are copied: that is cheaper than a shared holder, and a
// small received frame would keep alive the whole buffer that it was read with.
inline constexpr size_t kZeroCopyBytes = 2048;

// The I/O threads of a process. It must outlive its sockets. The destructor
// waits until they have sent what they hold, at most their linger.
class NetContext {
 public:
  struct Options {
    // One moves about 4 GB/s; more only help with several busy peers and cores.
    int io_threads = 1;
  };
  NetContext() : NetContext(Options()) {}
  explicit NetContext(const Options& options);
  ~NetContext();

  NetContext(const NetContext&) = delete;
  NetContext& operator=(const NetContext&) = delete;

 private:
  friend class Socket;
  const std::unique_ptr<zmq::context_t> context_;
};

// For main(), before threads start: makes the process keep the memory it frees.
// ZeroMQ allocates memory for every received frame. By default glibc returns
// freed memory to the kernel as soon as about two frames' worth of it lies
// idle, and then each message of several frames costs a page fault per page:
// about twice the CPU time at 256 KiB frames.
void KeepFreedMemory();

struct SocketOptions {
  // Messages queued per peer; a full queue refuses (send) or pushes back to the
  // sender (receive). Whoever sends large ones bounds their bytes by a window.
  int send_queue_max = 1000;
  int receive_queue_max = 1000;
  // Of one message. A sender is refused; a received message beyond it is
  // malformed. A single frame beyond message_bytes_max ends its connection.
  int payloads_max = 65536;
  int64_t message_bytes_max = int64_t{1} << 30;  // Header and payloads.
  // How long a closed socket goes on sending what it holds.
  absl::Duration linger = absl::Milliseconds(500);
  // A connection on which nothing, not even a heartbeat, has come for this long
  // is given up and made anew.
  absl::Duration silence_max = absl::Seconds(10);
};

// What both kinds have in common.
class Socket {
 public:
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket();

  // Received messages that were no messages of ours.
  int64_t malformed_count() const { return malformed_count_; }
  // Messages that Send() refused because of the peer (not connected, full).
  int64_t dropped_count() const { return dropped_count_; }

 protected:
  Socket(NetContext& context, int type, const SocketOptions& options);
  static absl::Status CheckOptions(const SocketOptions& options);

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
  absl::Status CheckBounds(const Message& message) const;

  const SocketOptions options_;
  std::unique_ptr<zmq::socket_t> socket_;
  int64_t malformed_count_ = 0;
  int64_t dropped_count_ = 0;

 private:
  friend class Poller;
  int file_descriptor() const;
  // Also makes the socket take in what has happened meanwhile.
  absl::StatusOr<bool> HasInput();

  // The last call was a receive that found nothing: every message since then
  // shows in the file descriptor.
  bool drained_ = false;
};

// Answers many peers; a peer is known from its connection on, by its routing
// id, which is the text of its PeerId. The latest connection of a PeerId
// counts.
class RouterSocket : public Socket {
 public:
  struct Incoming {
    PeerId from;
    Message message;
  };

  static absl::StatusOr<std::unique_ptr<RouterSocket>> Create(
      NetContext& context, const SocketOptions& options = {});

  // May be called several times. Returns the endpoint to connect to, with the
  // port that was chosen if `endpoint` ends in ":0". "tcp://" wants a numeric
  // address or an interface name, not a host name; "ipc://@name" leaves no
  // file. The error names the endpoint and the fix, for example for a port in
  // use.
  absl::StatusOr<std::string> Bind(const std::string& endpoint);

  // The next message; nullopt if there is none. Does not block. A malformed one
  // (header that does not parse, no header, too large, a routing id that is no
  // PeerId) is not an error: it is counted, its sender gets an ErrorReply, and
  // the next one is looked at. After many of them in a row nullopt is returned
  // though there may be more, so that a flood does not hold up the caller.
  absl::StatusOr<std::optional<Incoming>> Receive();

  // Queues a message. Does not block. NotFound: the peer is not connected;
  // ResourceExhausted: its queue is full. In both cases the message is dropped
  // and counted, and the caller's protocol is to repeat it. InvalidArgument:
  // the message exceeds a bound of the options. Others: the socket is broken.
  absl::Status Send(const PeerId& to, const Message& message);

 private:
  using Socket::Socket;
  void SendError(const zmq::message_t& to, const std::string& error);
};

// Talks to the one RouterSocket that it is connected to.
class DealerSocket : public Socket {
 public:
  static absl::StatusOr<std::unique_ptr<DealerSocket>> Create(
      NetContext& context, const PeerId& self,
      const SocketOptions& options = {});

  // To be called once. Nobody needs to listen yet: messages are queued, and the
  // connection is tried again until it is there.
  absl::Status Connect(const std::string& endpoint);

  // The next message; nullopt if there is none. Does not block. Malformed ones
  // are counted and skipped.
  absl::StatusOr<std::optional<Message>> Receive();

  // Queues a message, also while there is no connection. Does not block.
  // ResourceExhausted: the queue is full, the message is dropped and counted.
  // InvalidArgument: it exceeds a bound. Others: the socket is broken.
  absl::Status Send(const Message& message);

 private:
  using Socket::Socket;
  std::string endpoint_;
};

}  // namespace slackline
