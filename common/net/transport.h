// Messages between processes, whatever carries them: ZeroMQ (common/net/zmq/),
// shared memory (common/net/shm/), a decorator that delays
// (common/net/delayed/), memory of one process
// (tests/support/memory_transport.h). Product classes know these interfaces
// only; main() makes the Transport.
//
// A shard thread or a control thread listens at one Listener, and each of its
// peers has a Channel to it. Payloads are not copied where that can be avoided:
// a sent one is referenced until the system has taken its bytes, a received one
// refers to the memory that it was read into.
//
// Delivery is at most once and in order per connection. A message is lost when
// its connection breaks or its queue is full, so every protocol above repeats
// what was not answered. Connections come back by themselves.
//
// Threads: a Transport is thread-safe unless it says otherwise. A Channel and a
// Listener belong to one thread, and may be handed to another with a
// synchronising operation in between. A Transport outlives what it has made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/keys/role.h"
#include "common/link_state.h"
#include "common/message.h"
#include "common/net/waitable.h"
#include "proto/run.pb.h"

namespace slackline {

struct ChannelOptions {
  // Messages queued per peer; a full queue refuses (send) or pushes back to the
  // sender (receive, channels only). Whoever sends large ones bounds their
  // bytes by a window.
  int send_queue_max = 1000;
  int receive_queue_max = 1000;
  // Listeners: what one peer may have sent that Receive() has not returned yet,
  // as whole messages or as parts of one. The connection of a peer from another
  // process with more of it is ended, and counts as malformed. At least as much
  // as the windows of the protocols above allow to be under way. Memory may
  // come to 32 times as much, if a peer sends nothing but empty frames.
  int64_t unread_bytes_max = int64_t{32} << 20;
  // The bounds of one message. A sender is refused; a received message beyond
  // them is malformed. A single frame beyond message_bytes_max ends its
  // connection.
  int payloads_max = 65536;
  int64_t message_bytes_max = int64_t{1} << 30;  // Header and payloads.
  // Peers that a Listener can answer. One that was not heard while so many
  // others were may be forgotten, until its next message. At least 1.
  int peers_max = 65536;
  // How long a closed channel goes on sending what it holds.
  absl::Duration linger = absl::Milliseconds(500);
  // A connection whose other host has not answered for this long, by what TCP
  // tells, is given up and made anew. At least a second where nothing is sent.
  absl::Duration silence_max = absl::Seconds(10);
  // Channels: ReceiveLinkState() tells of the other end.
  bool watch_link = false;
  // Channels: whose key the other end has to have; kServer or kWorker.
  Role listener = Role::kServer;
};

// InvalidArgument names the option, its value and its bound.
absl::Status CheckChannelOptions(const ChannelOptions& options);

// InvalidArgument if the message exceeds a bound of the options, or its header
// kHeaderBytesMax.
absl::Status CheckBounds(const Message& message, const ChannelOptions& options);

// What Channels and Listeners count.
struct ChannelCounts {
  // Received messages that were no messages of ours, and connections that were
  // ended since too much lay unread.
  int64_t malformed = 0;
  // The connections among those, and a sentence for people: who had the last
  // one, and how much lay unread.
  int64_t overruns = 0;
  std::string last_overrun = {};
  // Listeners: whom they have refused. A sentence for people: who was the last
  // one that RefusedCount() counts, and what was wrong; and who the last silent
  // one.
  run::Refusals refused = {};
  std::string last_refused = {};
  std::string last_silent = {};
  // Messages that Send() refused because of the peer (not connected, full).
  int64_t dropped = 0;
};

// The connection of a peer to the one Listener that it was made for.
//
// FailedPrecondition from any of its calls: the endpoint is none for this
// process, and waiting does not change that; the error says why. What was sent
// is lost. Another endpoint of the peer may do.
class Channel : public Waitable {
 public:
  // The next message; nullopt if there is none. Does not block. Malformed ones
  // are counted and skipped.
  virtual absl::StatusOr<std::optional<Message>> Receive() = 0;

  // Queues a message, also while there is no connection. Does not block.
  // ResourceExhausted: the queue is full, the message is dropped and counted.
  // InvalidArgument: it exceeds a bound. Others: the channel is broken.
  virtual absl::Status Send(const Message& message) = 0;

  // Whether a process listens at the other end, with watch_link, after all that
  // has happened since the last call; nullopt if nothing has happened that says
  // something. Does not block.
  //
  // TCP tells that a process has ended: the next connection is refused. It does
  // not tell of one that is stopped, whose kernel goes on accepting
  // connections, nor of a partition: an attempt that merely finds no answer
  // says nothing.
  virtual absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() = 0;

  virtual ChannelCounts counts() const = 0;
};

// Answers many peers. A peer is known from its first message on, by the PeerId
// that its Channel was made with. Where there are keys, only those are heard
// who have one, as what it lets them be, and what it lets them say
// (common/keys/authority.h). Of two that call themselves alike, such as a
// worker of a job and one of an earlier job on the same ports, the one that was
// heard last counts.
class Listener : public Waitable {
 public:
  struct Incoming {
    PeerId from;
    Message message;
  };

  // May be called several times, before a Poller waits for the listener.
  // Returns the endpoint to connect to, with the port that was chosen if
  // `endpoint` ends in ":0". "tcp://" wants a numeric address or an interface
  // name, not a host name; "ipc://@name" leaves no file; "shm://@name" is for a
  // ShmTransport; "inproc://name" can be
  // reached from within the process only. The error names the endpoint and the
  // fix, for example for a port in use.
  virtual absl::StatusOr<std::string> Bind(const std::string& endpoint) = 0;

  // The next message; nullopt if there is none. Does not block. A malformed one
  // (header that does not parse, no header, too large, from nobody) is not an
  // error: it is counted, its sender gets an ErrorReply, and the next one is
  // looked at. After many of them in a row nullopt is returned though there may
  // be more, so that a flood does not hold up the caller.
  virtual absl::StatusOr<std::optional<Incoming>> Receive() = 0;

  // Queues a message. Does not block. NotFound: the peer is not connected, or
  // has not sent anything; ResourceExhausted: its queue is full. In both cases
  // the message is dropped and counted, and the caller's protocol is to repeat
  // it. InvalidArgument: the message exceeds a bound of the options. Others:
  // the listener is broken.
  virtual absl::Status Send(const PeerId& to, const Message& message) = 0;

  virtual ChannelCounts counts() const = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) = 0;

  // Nobody needs to listen at `endpoint` yet: messages are queued, and the
  // connection is tried again until it is there. `self` is what the Listener
  // knows the peer by.
  virtual absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) = 0;

  // Where a process is to be reached.
  struct Place {
    std::string host;  // An address or an interface of this host.
    int port = 0;      // 0: any that is free.
  };
  // New endpoints there, at each of which one of its listeners can be bound, in
  // every way that it has: over the network, tcp first, and within this host,
  // for processes of one user.
  virtual std::vector<std::string> EndpointsAt(const Place& place) = 0;

  // Where large payloads that are sent through it are best made. Never null.
  virtual std::shared_ptr<PayloadMemory> memory() {
    return std::make_shared<PayloadMemory>();
  }
};

}  // namespace slackline
