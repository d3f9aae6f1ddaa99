// ShmTransport: messages between processes of one host through memory that both
// map, at endpoints shm://@name; all others are another transport's, and a
// Listener may be bound to endpoints of both.
//
// A channel connects through a Unix socket with an abstract name, which passes
// the descriptors of the memory: for each connection the rings of both
// directions (common/net/shm/shm_stream.h), and of each process its ShmArena.
// That two processes can meet there is what makes them be on one host.
//
// A large payload is copied once, into the sender's arena, and not at all if it
// is there already. The receiver's Payload is those bytes, and the arena has
// them until the last copy of it is gone, in whatever process. What a process
// has sent outlives it.
//
// A peer is trusted to be a process of the same user, and no further: what it
// writes is checked, its memory cannot shrink, and when it dies its connections
// end.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/net/shm/shm_arena.h"
#include "common/net/transport.h"

namespace slackline {

struct ShmConnection;

class ShmTransport : public Transport {
 public:
  struct Options {
    // The size of the arena, which takes addresses, in this process and in all
    // that it is connected to, and memory only for what was there at some time.
    // At most twice the copies where the process has a bound on addresses
    // (ulimit -v).
    size_t arena_bytes = size_t{16} << 30;
    // The part of the arena for copies that are on their way to others, and not
    // let go by them yet. What has no room there takes the longer way through
    // the rings.
    size_t copies_bytes_max = size_t{256} << 20;
  };
  // `others` outlives it.
  explicit ShmTransport(Transport& others) : ShmTransport(others, Options()) {}
  ShmTransport(Transport& others, const Options& options);
  ~ShmTransport() override;
  ShmTransport(const ShmTransport&) = delete;
  ShmTransport& operator=(const ShmTransport&) = delete;

  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override;
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override;
  std::vector<std::string> EndpointsAt(const Place& place) override;
  // The arena; the heap where the system gives none.
  std::shared_ptr<PayloadMemory> memory() override;

  // For the channels and listeners of this transport.
  // Made when it is needed first.
  absl::StatusOr<std::shared_ptr<ShmArena>> Arena();
  // A connection that has ended, whose memory the other end may still read.
  void Bury(std::unique_ptr<ShmConnection> connection);

 private:
  Transport& others_;
  const Options options_;
  Mutex mutex_;
  std::shared_ptr<ShmArena> arena_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ShmConnection>> buried_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
