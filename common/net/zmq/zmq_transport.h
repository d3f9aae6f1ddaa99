// ZmqTransport: messages between processes over ZeroMQ, tcp://, ipc:// and
// inproc://.
//
// A Listener is a ROUTER socket, a Channel a DEALER socket. On the wire a
// message is the header frame (common/net/header_codec.h) and then its payload
// frames, of one or more payloads each (common/net/payload_frames.h). Payloads
// are not copied from kZeroCopyBytes on, but for small ones in a large frame.
//
// A routing id is the text of the peer's PeerId, '#', and a suffix that no
// other socket has. So two processes that call themselves alike never share a
// routing id, which ZeroMQ does not bear well.
//
// Only files of this folder (and the raw half of benchmarks) include zmq.hpp.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/net/transport.h"

namespace zmq {
class context_t;
}  // namespace zmq

namespace slackline {

// Smaller payloads are copied: that is cheaper than a shared holder, and a
// small received frame would keep alive the whole buffer that it was read with.
inline constexpr size_t kZeroCopyBytes = 2048;

// Holds the I/O threads of a process. The destructor waits until they have sent
// what they hold, at most their linger.
class ZmqTransport : public Transport {
 public:
  struct Options {
    // One moves about 4 GB/s; more only help with several busy peers and cores.
    int io_threads = 1;
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

 private:
  // Never given out before, in this process or another one.
  std::string UniqueSuffix();

  const std::unique_ptr<zmq::context_t> context_;
  const uint64_t token_;  // Random.
  std::atomic<uint64_t> next_number_{1};
};

}  // namespace slackline
