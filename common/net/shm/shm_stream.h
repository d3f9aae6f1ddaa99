// The messages of one direction of a connection through shared memory.
//
// A message is a row of parts: its header, then its payloads. A part is a row
// of pieces, which lie in a ring, each with a head that describes it. Small
// parts are in the ring themselves; of large ones the ring says where they are
// in the writer's ShmArena; and where there is no room in that, they go through
// the ring in several pieces. So a writer gets on, whatever its reader holds.
//
// What is in the arena is held by a slot: the writer keeps the payload until
// the reader has let it go.
//
// Neither side waits for the other one. Who finds nothing to do says so in the
// shared memory before it sleeps, and is woken by the other one through their
// socket: see Sleep() of the one and TakeWake() of the other.
//
// Everything that a peer writes is checked here: it can break the connection,
// and garble or withhold its own messages, but nothing else.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/message.h"
#include "common/net/shm/shm_arena.h"
#include "common/net/transport.h"

namespace slackline {

// What both sides of a direction write to. Zeros at first.
struct ShmStream {
  static constexpr size_t kRingBytes = size_t{256} << 10;
  static constexpr size_t kSlots = 2048;

  // Bytes that the writer has written so far.
  alignas(64) std::atomic<uint64_t> written;
  std::atomic<uint32_t> ended;          // It writes no more.
  std::atomic<uint32_t> writer_sleeps;  // It waits for room in the ring.
  // Bytes that the reader has read so far.
  alignas(64) std::atomic<uint64_t> read;
  std::atomic<uint32_t> reader_sleeps;  // It waits for something to read.
  // 1: in use. The writer sets it, the reader clears it.
  alignas(64) std::atomic<uint32_t> slots[kSlots];
  alignas(64) std::byte ring[kRingBytes];
};

// Parts of more bytes than this go through the arena.
inline constexpr size_t kShmInlineMax = 2048;

// Thread-compatible.
class ShmWriter {
 public:
  // `stream` outlives it.
  ShmWriter(ShmStream* stream, std::shared_ptr<ShmArena> arena,
            const ChannelOptions& options);

  // Takes a message, and writes as much of it as there is room for; Flush()
  // writes the rest. False, and nothing is taken: so many wait as may.
  bool Send(const Message& message);
  // InvalidArgument: the reader has broken the stream.
  absl::Status Flush();
  // Nothing of what was taken is still to be written.
  bool flushed() const { return waiting_.empty(); }
  bool broken() const { return broken_; }
  // Nothing more comes, also not what still waits.
  void End();

  // Whether the reader has to be woken, for what was written since the last
  // call.
  bool TakeWake();
  // To be called before the writer sleeps with something to write. False: there
  // is room.
  bool Sleep();

  // Lets go of what the reader has let go of, as far as that is soon found.
  void Reclaim();
  // Lets go of all that the reader has let go of. True if the reader has
  // nothing any more.
  bool ReclaimAll();
  // What nobody has begun to write.
  std::deque<Message> TakeWaiting();

 private:
  struct Part {
    const std::byte* data;
    size_t bytes;
    const Payload* payload;  // nullptr: it is the header.
    bool last;               // It is the last one of its message.
  };
  Part NextPart() const;
  // False if there is no room for all of it.
  bool Write(const Part& part);
  bool WriteInArena(const Part& part);
  // Room in the ring for a head and so many bytes; nullptr if there is none.
  std::byte* Room(size_t bytes);
  std::optional<uint32_t> FreeSlot();

  ShmStream* const stream_;
  const std::shared_ptr<ShmArena> arena_;
  const size_t waiting_max_;
  std::deque<Message> waiting_;
  std::string header_;  // The first waiting message's.
  size_t part_ = 0;     // The part of it that is next; 0: the header.
  size_t offset_ = 0;   // Bytes of that part that have been written.
  uint64_t written_ = 0;
  uint64_t announced_ = 0;  // What was written at the last TakeWake().
  uint64_t read_ = 0;       // What the reader has read, as it said last.
  bool broken_ = false;
  std::vector<Payload> held_;  // By slot.
  std::vector<uint32_t> free_slots_;
  std::deque<uint32_t> used_slots_;  // The oldest first.
};

// The other end of a connection, as it is mapped here. What a reader returns
// keeps it.
class ShmPeer {
 public:
  virtual ~ShmPeer() = default;
  virtual absl::Span<const std::byte> arena() const = 0;
};

// Thread-compatible; what it returns may be let go of by any thread.
class ShmReader {
 public:
  // The memory of `stream` lives as long as `peer`.
  ShmReader(ShmStream* stream, std::shared_ptr<const ShmPeer> peer,
            const ChannelOptions& options);

  // A message, or what is wrong with it.
  struct Incoming {
    Message message;
    std::string fault;  // Empty: nothing.
  };
  // The next one; nullopt if there is none yet, or after a lot of bytes, so
  // that one peer does not hold up the caller. InvalidArgument: the writer has
  // broken the stream.
  absl::StatusOr<std::optional<Incoming>> Receive();
  bool HasInput() const;
  // All that was ever to come has been received.
  bool ended() const;
  // Whether the writer has to be woken, for the room that was made since the
  // last call.
  bool TakeWake();
  // To be called before the reader sleeps. False: there is something to read.
  bool Sleep();

 private:
  struct Head;
  struct Lease;
  absl::Status ReadPiece();
  absl::Status ReadFromArena(const Head& head);
  absl::Status ReadFromRing(const Head& head, const std::byte* data);
  void EndPart(Payload part, bool last);
  void SayRead();
  Incoming EndMessage();

  ShmStream* const stream_;
  const std::shared_ptr<const ShmPeer> peer_;
  const int64_t message_bytes_max_;
  const size_t payloads_max_;
  uint64_t read_ = 0;
  uint64_t said_ = 0;       // What the writer was told of read_.
  uint64_t announced_ = 0;  // What said_ was at the last TakeWake().
  // What there is of the message that comes.
  std::optional<Payload> header_;
  std::vector<Payload> payloads_;
  int64_t bytes_ = 0;
  std::string fault_;
  bool complete_ = false;
  Payload part_;           // A part that comes in pieces,
  size_t part_bytes_ = 0;  // of which so many bytes have come.
};

}  // namespace slackline
