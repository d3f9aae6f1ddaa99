// One connection of ShmTransport, as a channel and a listener have it: what
// they say first, the other end, and the rings of both directions. Of this
// folder alone; used by the thread of its channel or listener.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/net/shm/shared_memory.h"
#include "common/net/shm/shm_arena.h"
#include "common/net/shm/shm_socket.h"
#include "common/net/shm/shm_stream.h"
#include "common/net/transport.h"

namespace slackline {

inline constexpr char kShmScheme[] = "shm://@";
inline constexpr size_t kShmSchemeLength = sizeof(kShmScheme) - 1;

bool IsShmEndpoint(const std::string& endpoint);

// A message in a row of this many malformed ones is left for the next call.
inline constexpr int kShmMalformedPerCall = 64;
// No peer's arena is larger. Memory that is only mapped costs nothing.
inline constexpr uint64_t kShmPeerArenaMax = uint64_t{1} << 40;
// The longest time between two tries to connect, or to accept.
inline constexpr absl::Duration kShmRetryMax = absl::Seconds(1);

// What a channel and then a listener say first.
inline constexpr uint64_t kShmVersion = 0x736c6b73686d3031;  // "slkshm01"
struct ShmHello {
  uint64_t version;
  uint64_t arena_bytes;
  std::array<char, 64> peer;  // Text of a PeerId, ended by a zero.
};
struct ShmWelcome {
  uint64_t version;
  uint64_t arena_bytes;
};
// What a listener says that refuses, and then ends the connection.
inline constexpr uint64_t kShmRefusal = 0x736c6b72656675;  // "slkrefu"
struct ShmRefusal {
  uint64_t version;
  std::array<char, 240> why;  // Ended by a zero.
};

// What both ends of one connection write to, made by the channel.
struct ShmControl {
  ShmStream to_listener;
  ShmStream to_channel;
};

template <typename T>
absl::Span<const std::byte> BytesOf(const T& value) {
  return {reinterpret_cast<const std::byte*>(&value), sizeof(value)};
}

// The other end of a connection. Its socket is open as long as somebody has
// bytes of its arena: that the socket is closed tells the other end that nobody
// has.
class ShmLink : public ShmPeer {
 public:
  ShmLink(Descriptor socket, SharedMemory control)
      : socket_(std::move(socket)), control_(std::move(control)) {}

  // To be called before the first payload is received.
  void SetArena(SharedMemory arena) { arena_ = std::move(arena); }

  absl::Span<const std::byte> arena() const override {
    return {arena_.data(), arena_.size()};
  }
  ShmControl* control() const {
    return reinterpret_cast<ShmControl*>(control_.data());
  }
  const Descriptor& socket() const { return socket_; }

  void Wake() const;
  // Takes the wakes that have come. False: the other end is gone.
  bool ReadWakes() const;
  bool Gone() const;

 private:
  const Descriptor socket_;
  const SharedMemory control_;
  SharedMemory arena_;
};

// Which descriptors have news: one descriptor for all of them.
class ShmEventQueue {
 public:
  ShmEventQueue();
  int descriptor() const { return epoll_.get(); }

  // Unavailable: there are too many.
  absl::Status Add(const Descriptor& descriptor, uint64_t key);
  void Remove(const Descriptor& descriptor);
  // The keys of descriptors that have news. Does not wait. There may be more.
  std::vector<uint64_t> Take();

 private:
  const Descriptor epoll_;
};

struct ShmConnection {
  ShmConnection(std::shared_ptr<ShmLink> with, ShmStream* out, ShmStream* in,
                std::shared_ptr<ShmArena> arena, const ChannelOptions& options)
      : link(std::move(with)),
        writer(out, std::move(arena), options),
        reader(in, link, options) {}

  // False: the queue is full.
  bool Send(const Message& message) {
    const bool sent = writer.Send(message);
    if (writer.TakeWake()) link->Wake();
    return sent;
  }
  // Writes what waits.
  void Flush() {
    if (!writer.flushed()) writer.Flush().IgnoreError();
    if (writer.TakeWake()) link->Wake();
  }
  // The next message, or nullopt. `*over`: there will be none any more.
  std::optional<ShmReader::Incoming> Receive(int64_t* malformed, bool* over);
  // Receive() has something to say.
  bool HasNews() const {
    return reader.HasInput() || reader.ended() || gone || writer.broken();
  }
  // To be called before the thread sleeps. False: there is something to do.
  bool Sleep() {
    writer.Reclaim();
    Flush();
    const bool written = writer.flushed() || writer.Sleep();
    return reader.Sleep() && written && !HasNews();
  }
  void End() {
    writer.End();
    link->Wake();
  }

  const std::shared_ptr<ShmLink> link;
  ShmWriter writer;
  ShmReader reader;
  bool gone = false;  // The other end is; what it has sent is still there.
};

}  // namespace slackline
