// ZmqTransport: messages between processes over ZeroMQ, tcp://, ipc:// and
// inproc://.
//
// A Listener is a ROUTER socket (zmq_listener.h), a Channel a DEALER socket
// (zmq_channel.h). On the wire a message is the header frame
// (common/net/header_codec.h) and then its payload frames, of one or more
// payloads each (common/net/payload_frames.h). Payloads are not copied from
// kZeroCopyBytes on, but for small ones in a large frame.
//
// A routing id is the text of the peer's PeerId, '#', and a suffix that no
// other socket has. So two processes that call themselves alike never share a
// routing id, which ZeroMQ does not bear well.
//
// With keys every tcp and ipc connection is encrypted and authenticated
// by CURVE (rfc.zeromq.org/spec/26): both ends prove their role's key
// (common/keys/credentials.h), with new session keys for each connection, so
// nothing that was recorded counts again. Connections within the process need
// none. When the keys are exchanged (common/keys/live_keys.h), listeners bind
// anew with the new ones, hear nobody any more who has shown an old one, and
// channels connect anew.
//
// Only files of this folder (and the raw half of benchmarks) include zmq.hpp.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/keys/live_keys.h"
#include "common/mutex.h"
#include "common/net/transport.h"

namespace zmq {
class context_t;
}  // namespace zmq

namespace slackline {

// FailedPrecondition: the libzmq of this process cannot encrypt.
absl::Status CheckCurve();

class KeyCheck;

// Holds the I/O threads of a process. The destructor waits until they have sent
// what they hold, at most their linger; in a child of the process that made it
// it does nothing.
class ZmqTransport : public Transport {
 public:
  struct Options {
    // One moves about 4 GB/s; more only help with several busy peers and cores.
    int io_threads = 1;
    // nullptr: everything is plain, and everybody is heard.
    std::shared_ptr<const LiveKeys> keys = nullptr;
  };
  ZmqTransport() : ZmqTransport(Options()) {}
  explicit ZmqTransport(const Options& options);
  ~ZmqTransport() override;

  ZmqTransport(const ZmqTransport&) = delete;
  ZmqTransport& operator=(const ZmqTransport&) = delete;

  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override;
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override;
  std::vector<std::string> EndpointsAt(const Place& place) override;

 private:
  // A suffix never given out before, in this process or another one.
  std::string UniqueSuffix();

  // Lets nobody in without a key, from the first listener on.
  // nullptr without keys. FailedPrecondition as of CheckCurve().
  absl::StatusOr<const KeyCheck*> BeginKeyCheck();

  const pid_t process_;
  const std::shared_ptr<const LiveKeys> keys_;  // nullptr: everything is plain.
  std::unique_ptr<zmq::context_t> context_;
  Mutex key_check_mutex_;
  std::unique_ptr<KeyCheck> key_check_ ABSL_GUARDED_BY(key_check_mutex_);
  const uint64_t token_;  // Random.
  std::atomic<uint64_t> next_number_{1};
};

}  // namespace slackline
