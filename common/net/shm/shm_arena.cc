#include "common/net/shm/shm_arena.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

// Of one payload.
struct ShmArena::Extent {
  Extent(std::shared_ptr<ShmArena> of, size_t at, size_t length, bool copy)
      : arena(std::move(of)), offset(at), bytes(length), is_copy(copy) {}
  Extent(Extent&&) = default;
  Extent& operator=(Extent&&) = default;
  ~Extent() {
    if (arena != nullptr) arena->Free(*this);
  }

  std::shared_ptr<ShmArena> arena;
  size_t offset;
  size_t bytes;
  bool is_copy;
};

absl::StatusOr<std::shared_ptr<ShmArena>> ShmArena::Create(size_t bytes,
                                                           size_t copies_max) {
  SL_ASSIGN_OR_RETURN(SharedMemory memory,
                      SharedMemory::Create(bytes, SharedMemory::Peers::kRead));
  return std::make_shared<ShmArena>(std::move(memory), copies_max);
}

ShmArena::ShmArena(SharedMemory memory, size_t copies_max)
    : memory_(std::move(memory)),
      copies_max_(std::min(copies_max, memory_.size())) {
  const MutexLock lock(mutex_);
  free_[0] = memory_.size() / kAlignment * kAlignment;
}

Payload ShmArena::Allocate(size_t bytes) {
  Payload payload = Take(bytes, /*is_copy=*/false);
  return payload.empty() ? Payload::Allocate(bytes) : payload;
}

Payload ShmArena::Copy(const void* data, size_t bytes) {
  Payload payload = Take(bytes, /*is_copy=*/true);
  if (!payload.empty()) std::memcpy(payload.MutableData(), data, bytes);
  return payload;
}

Payload ShmArena::Take(size_t bytes, bool is_copy) {
  const size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (wanted == 0 || wanted < bytes) return Payload();
  size_t offset = 0;
  {
    const MutexLock lock(mutex_);
    const size_t allowed =
        is_copy ? copies_max_ - copies_
                : memory_.size() - copies_max_ - (used_ - copies_);
    if (wanted > allowed) return Payload();
    auto extent = free_.begin();
    while (extent != free_.end() && extent->second < wanted) ++extent;
    if (extent == free_.end()) return Payload();
    offset = extent->first;
    const size_t rest = extent->second - wanted;
    free_.erase(extent);
    if (rest > 0) free_[offset + wanted] = rest;
    used_ += wanted;
    if (is_copy) copies_ += wanted;
  }
  return Payload::WrapWritable(
      memory_.data() + offset, bytes,
      Extent(shared_from_this(), offset, wanted, is_copy));
}

std::optional<size_t> ShmArena::OffsetOf(const Payload& payload) const {
  const std::byte* const begin = memory_.data();
  if (payload.data() < begin || payload.data() >= begin + memory_.size())
    return std::nullopt;
  return static_cast<size_t>(payload.data() - begin);
}

size_t ShmArena::used() const {
  const MutexLock lock(mutex_);
  return used_;
}

void ShmArena::Free(const Extent& extent) {
  const size_t offset = extent.offset;
  size_t bytes = extent.bytes;
  const MutexLock lock(mutex_);
  used_ -= bytes;
  if (extent.is_copy) copies_ -= bytes;
  auto next = free_.upper_bound(offset);
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  free_[offset] = bytes;
}

}  // namespace slackline
