#include "common/net/shm/shm_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/header_codec.h"
#include "common/status.h"

namespace slackline {
namespace {

// Before each piece.
struct PieceHead {
  uint32_t flags = 0;
  uint32_t slot = 0;    // kInArena.
  uint64_t offset = 0;  // kInArena: in the arena.
  uint64_t bytes = 0;   // Of the piece.
  uint64_t total = 0;   // Of the part.
};
enum Flag : uint32_t {
  kInArena = 1,
  kMorePieces = 2,  // The next piece is of the same part,
  kMoreParts = 4,   // or at least of the same message.
  kSkip = 8,        // No piece: the ring goes on at its beginning.
};
// A piece never lies around the end of the ring, and there is always room for a
// head there.
constexpr size_t kHead = sizeof(PieceHead);
static_assert(kHead == 32 && ShmStream::kRingBytes % kHead == 0);
static_assert(std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// Of a part that goes through the ring.
constexpr size_t kPieceMax = ShmStream::kRingBytes / 8;
// That are read before a reader looks elsewhere.
constexpr uint64_t kReadPerCall = 4 * ShmStream::kRingBytes;
// Slots in use that are looked at, beyond those that are free in a row.
constexpr size_t kLookFurther = 4;

constexpr size_t InRing(size_t bytes) {
  return kHead + (bytes + kHead - 1) / kHead * kHead;
}

absl::Status Broken(const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer has broken its stream in shared memory: ", what));
}

}  // namespace

// ---- ShmWriter --------------------------------------------------------------

ShmWriter::ShmWriter(ShmStream* stream, std::shared_ptr<ShmArena> arena,
                     const ChannelOptions& options)
    : stream_(stream),
      arena_(std::move(arena)),
      waiting_max_(static_cast<size_t>(options.send_queue_max)),
      held_(ShmStream::kSlots) {
  for (uint32_t slot = ShmStream::kSlots; slot > 0; --slot)
    free_slots_.push_back(slot - 1);
}

bool ShmWriter::Send(const Message& message) {
  if (waiting_.size() >= waiting_max_) return false;
  waiting_.push_back(message);
  // What is wrong is said when it is flushed.
  if (waiting_.size() == 1) Flush().IgnoreError();
  return true;
}

absl::Status ShmWriter::Flush() {
  Reclaim();
  while (!waiting_.empty() && !broken_) {
    const Message& message = waiting_.front();
    if (part_ == 0 && offset_ == 0) {
      header_.resize(HeaderBytes(message.header));
      SerializeHeader(message.header, header_.data());
    }
    if (!Write(NextPart())) break;
    offset_ = 0;
    if (part_++ < message.payloads.size()) continue;
    part_ = 0;
    waiting_.pop_front();
  }
  stream_->written.store(written_, std::memory_order_release);
  if (!broken_) return absl::OkStatus();
  return Broken("it has read more than was written");
}

ShmWriter::Part ShmWriter::NextPart() const {
  const Message& message = waiting_.front();
  const bool last = part_ == message.payloads.size();
  if (part_ == 0) {
    return {.data = reinterpret_cast<const std::byte*>(header_.data()),
            .bytes = header_.size(),
            .payload = nullptr,
            .last = last};
  }
  const Payload& payload = message.payloads[part_ - 1];
  return {.data = payload.data(),
          .bytes = payload.size(),
          .payload = &payload,
          .last = last};
}

bool ShmWriter::Write(const Part& part) {
  if (Room(0) == nullptr) return false;
  if (part.bytes > kShmInlineMax && offset_ == 0 && WriteInArena(part))
    return true;
  do {
    const size_t bytes = std::min(part.bytes - offset_, kPieceMax);
    std::byte* const room = Room(bytes);
    if (room == nullptr) return false;
    PieceHead head = {.bytes = bytes, .total = part.bytes};
    if (offset_ + bytes < part.bytes) head.flags |= kMorePieces;
    if (!part.last) head.flags |= kMoreParts;
    std::memcpy(room, &head, kHead);
    if (bytes > 0) std::memcpy(room + kHead, part.data + offset_, bytes);
    written_ += InRing(bytes);
    offset_ += bytes;
  } while (offset_ < part.bytes);
  return true;
}

bool ShmWriter::WriteInArena(const Part& part) {
  const std::optional<uint32_t> slot = FreeSlot();
  if (!slot.has_value()) return false;
  std::optional<size_t> offset;
  Payload payload;
  if (part.payload != nullptr) offset = arena_->OffsetOf(*part.payload);
  if (offset.has_value()) {
    payload = *part.payload;
  } else {
    payload = arena_->Copy(part.data, part.bytes);
    if (payload.empty()) {
      ReclaimAll();
      payload = arena_->Copy(part.data, part.bytes);
    }
    if (payload.empty()) {
      free_slots_.push_back(*slot);
      return false;
    }
    offset = arena_->OffsetOf(payload);
  }
  held_[*slot] = std::move(payload);
  used_slots_.push_back(*slot);
  stream_->slots[*slot].store(1, std::memory_order_relaxed);
  const PieceHead head = {
      .flags = kInArena | (part.last ? uint32_t{0} : kMoreParts),
      .slot = *slot,
      .offset = *offset,
      .bytes = part.bytes,
      .total = part.bytes};
  std::byte* const room = Room(0);  // There is, as Write() has seen.
  std::memcpy(room, &head, kHead);
  written_ += InRing(0);
  return true;
}

std::byte* ShmWriter::Room(size_t bytes) {
  constexpr size_t kRing = ShmStream::kRingBytes;
  const auto has = [&](size_t wanted) {
    if (kRing - (written_ - read_) >= wanted) return true;
    // What was written so far is to be seen by who makes room.
    stream_->written.store(written_, std::memory_order_release);
    const uint64_t read = stream_->read.load(std::memory_order_acquire);
    broken_ = broken_ || written_ - read > kRing;
    if (broken_) return false;
    read_ = read;
    return kRing - (written_ - read_) >= wanted;
  };
  const size_t wanted = InRing(bytes);
  const size_t to_end = kRing - written_ % kRing;
  if (!has(wanted > to_end ? to_end + wanted : wanted)) return nullptr;
  if (wanted > to_end) {
    const PieceHead skip = {.flags = kSkip};
    std::memcpy(stream_->ring + written_ % kRing, &skip, kHead);
    written_ += to_end;
  }
  return stream_->ring + written_ % kRing;
}

std::optional<uint32_t> ShmWriter::FreeSlot() {
  if (free_slots_.empty()) ReclaimAll();
  if (free_slots_.empty()) return std::nullopt;
  const uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

void ShmWriter::Reclaim() {
  size_t in_use = 0;
  for (auto slot = used_slots_.begin();
       slot != used_slots_.end() && in_use < kLookFurther;) {
    if (stream_->slots[*slot].load(std::memory_order_acquire) != 0) {
      ++in_use;
      ++slot;
      continue;
    }
    held_[*slot] = Payload();
    free_slots_.push_back(*slot);
    slot = used_slots_.erase(slot);
  }
}

bool ShmWriter::ReclaimAll() {
  std::erase_if(used_slots_, [&](uint32_t slot) {
    if (stream_->slots[slot].load(std::memory_order_acquire) != 0) return false;
    held_[slot] = Payload();
    free_slots_.push_back(slot);
    return true;
  });
  return used_slots_.empty();
}

void ShmWriter::End() { stream_->ended.store(1, std::memory_order_release); }

bool ShmWriter::TakeWake() {
  if (std::exchange(announced_, written_) == written_) return false;
  // Either the reader sees what was written, or this sees that it sleeps.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return stream_->reader_sleeps.load(std::memory_order_relaxed) != 0 &&
         stream_->reader_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

bool ShmWriter::Sleep() {
  stream_->writer_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (stream_->read.load(std::memory_order_acquire) == read_) return true;
  stream_->writer_sleeps.store(0, std::memory_order_relaxed);
  return false;
}

std::deque<Message> ShmWriter::TakeWaiting() {
  if (part_ != 0 || offset_ != 0) waiting_.pop_front();
  part_ = offset_ = 0;
  return std::exchange(waiting_, {});
}

// ---- ShmReader --------------------------------------------------------------

struct ShmReader::Head : PieceHead {};

// Of a payload in the peer's arena.
struct ShmReader::Lease {
  Lease(std::shared_ptr<const ShmPeer> of, std::atomic<uint32_t>* word)
      : peer(std::move(of)), slot(word) {}
  Lease(Lease&&) = default;
  Lease& operator=(Lease&&) = default;
  ~Lease() {
    if (peer != nullptr) slot->store(0, std::memory_order_release);
  }

  std::shared_ptr<const ShmPeer> peer;
  std::atomic<uint32_t>* slot;
};

ShmReader::ShmReader(ShmStream* stream, std::shared_ptr<const ShmPeer> peer,
                     const ChannelOptions& options)
    : stream_(stream),
      peer_(std::move(peer)),
      message_bytes_max_(options.message_bytes_max),
      payloads_max_(static_cast<size_t>(options.payloads_max)) {}

bool ShmReader::HasInput() const {
  return stream_->written.load(std::memory_order_acquire) != read_;
}

bool ShmReader::ended() const {
  return stream_->ended.load(std::memory_order_acquire) != 0 && !HasInput();
}

bool ShmReader::TakeWake() {
  if (std::exchange(announced_, said_) == said_) return false;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return stream_->writer_sleeps.load(std::memory_order_relaxed) != 0 &&
         stream_->writer_sleeps.exchange(0, std::memory_order_relaxed) != 0;
}

bool ShmReader::Sleep() {
  SayRead();
  stream_->reader_sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!HasInput() && !ended()) return true;
  stream_->reader_sleeps.store(0, std::memory_order_relaxed);
  return false;
}

void ShmReader::SayRead() {
  if (said_ == read_) return;
  said_ = read_;
  stream_->read.store(read_, std::memory_order_release);
}

absl::StatusOr<std::optional<ShmReader::Incoming>> ShmReader::Receive() {
  const uint64_t begin = read_;
  while (!complete_) {
    if (!HasInput() || read_ - begin > kReadPerCall) {
      SayRead();
      return std::nullopt;
    }
    SL_RETURN_IF_ERROR(ReadPiece());
    if (read_ - said_ >= ShmStream::kRingBytes / 4) SayRead();
  }
  SayRead();
  return EndMessage();
}

absl::Status ShmReader::ReadPiece() {
  constexpr size_t kRing = ShmStream::kRingBytes;
  const uint64_t there =
      stream_->written.load(std::memory_order_acquire) - read_;
  if (there > kRing || there < kHead)
    return Broken(absl::StrCat(there, " bytes are there to be read"));
  const size_t at = read_ % kRing;
  // The peer may write to it meanwhile.
  Head head;
  std::memcpy(&head, stream_->ring + at, kHead);
  const bool in_arena = (head.flags & kInArena) != 0;
  if (!in_arena && head.bytes > kRing)
    return Broken(absl::StrCat("a piece of ", head.bytes, " bytes"));
  const size_t size = (head.flags & kSkip) != 0 ? kRing - at
                      : in_arena                ? kHead
                                                : InRing(head.bytes);
  if (size > there || size > kRing - at) {
    return Broken(absl::StrCat("a piece of ", size, " bytes at ", at, ", and ",
                               there, " are there"));
  }
  if ((head.flags & kSkip) == 0) {
    SL_RETURN_IF_ERROR(in_arena
                           ? ReadFromArena(head)
                           : ReadFromRing(head, stream_->ring + at + kHead));
  }
  read_ += size;
  return absl::OkStatus();
}

absl::Status ShmReader::ReadFromArena(const Head& head) {
  const absl::Span<const std::byte> arena = peer_->arena();
  if (head.offset > arena.size() || head.bytes > arena.size() - head.offset ||
      head.slot >= ShmStream::kSlots || part_bytes_ > 0 ||
      (head.flags & kMorePieces) != 0) {
    return Broken(absl::StrCat("bytes [", head.offset, ", +", head.bytes,
                               ") in slot ", head.slot, " of an arena of ",
                               arena.size()));
  }
  bytes_ += static_cast<int64_t>(head.bytes);
  if (bytes_ > message_bytes_max_) {
    return Broken(absl::StrCat("a message of ", bytes_,
                               " bytes or more, at most ", message_bytes_max_,
                               " are allowed"));
  }
  EndPart(Payload::Wrap(arena.data() + head.offset, head.bytes,
                        Lease(peer_, &stream_->slots[head.slot])),
          (head.flags & kMoreParts) == 0);
  return absl::OkStatus();
}

absl::Status ShmReader::ReadFromRing(const Head& head, const std::byte* data) {
  const bool last_piece = (head.flags & kMorePieces) == 0;
  const bool last_part = (head.flags & kMoreParts) == 0;
  if (part_bytes_ == 0) {
    if (head.total > static_cast<uint64_t>(message_bytes_max_ - bytes_)) {
      return Broken(absl::StrCat("a part of ", head.total, " bytes after ",
                                 bytes_, ", at most ", message_bytes_max_,
                                 " are allowed in a message"));
    }
    bytes_ += static_cast<int64_t>(head.total);
    part_ = Payload::Allocate(head.total);
  }
  if (head.bytes > part_.size() - part_bytes_ ||
      (!last_piece && head.bytes == 0) ||
      (last_piece && part_bytes_ + head.bytes != part_.size())) {
    return Broken(absl::StrCat("a piece of ", head.bytes, " bytes after ",
                               part_bytes_, " of a part of ", part_.size()));
  }
  if (head.bytes > 0)
    std::memcpy(part_.MutableData() + part_bytes_, data, head.bytes);
  part_bytes_ += head.bytes;
  if (!last_piece) return absl::OkStatus();
  part_bytes_ = 0;
  EndPart(std::exchange(part_, Payload()), last_part);
  return absl::OkStatus();
}

void ShmReader::EndPart(Payload part, bool last) {
  complete_ = last;
  if (!header_.has_value()) {
    header_ = std::move(part);
  } else if (payloads_.size() >= payloads_max_) {
    fault_ = absl::StrCat("more than ", payloads_max_, " payload frames");
  } else {
    payloads_.push_back(std::move(part));
  }
}

ShmReader::Incoming ShmReader::EndMessage() {
  Incoming incoming = {.message = {}, .fault = std::exchange(fault_, "")};
  // It is parsed where the peer does not write.
  const Payload header = header_->size() > kHeaderBytesMax
                             ? *header_
                             : Payload::Copy(header_->data(), header_->size());
  const absl::Status parsed =
      ParseHeader(header.bytes(), &incoming.message.header);
  if (!parsed.ok()) incoming.fault = std::string(parsed.message());
  incoming.message.payloads = std::exchange(payloads_, {});
  header_.reset();
  bytes_ = 0;
  complete_ = false;
  return incoming;
}

}  // namespace slackline
