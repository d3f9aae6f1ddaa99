#include "common/net/shm/shm_arena.h"

#include <iterator>
#include <utility>

#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

// Of one payload.
struct ShmArena::Extent {
  Extent(std::shared_ptr<ShmArena> of, size_t at, size_t length)
      : arena(std::move(of)), offset(at), bytes(length) {}
  Extent(Extent&&) = default;
  Extent& operator=(Extent&&) = default;
  ~Extent() {
    if (arena != nullptr) arena->Free(offset, bytes);
  }

  std::shared_ptr<ShmArena> arena;
  size_t offset;
  size_t bytes;
};

absl::StatusOr<std::shared_ptr<ShmArena>> ShmArena::Create(size_t bytes) {
  SL_ASSIGN_OR_RETURN(SharedMemory memory,
                      SharedMemory::Create(bytes, SharedMemory::Peers::kRead));
  return std::make_shared<ShmArena>(std::move(memory));
}

ShmArena::ShmArena(SharedMemory memory) : memory_(std::move(memory)) {
  const MutexLock lock(mutex_);
  free_[0] = memory_.size() / kAlignment * kAlignment;
}

std::optional<ShmArena::Room> ShmArena::Allocate(size_t bytes) {
  const size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (wanted == 0 || wanted < bytes) return std::nullopt;
  size_t offset = 0;
  {
    const MutexLock lock(mutex_);
    auto extent = free_.begin();
    while (extent != free_.end() && extent->second < wanted) ++extent;
    if (extent == free_.end()) return std::nullopt;
    offset = extent->first;
    const size_t rest = extent->second - wanted;
    free_.erase(extent);
    if (rest > 0) free_[offset + wanted] = rest;
    used_ += wanted;
  }
  std::byte* const data = memory_.data() + offset;
  return Room{data, Payload::Wrap(data, bytes,
                                  Extent(shared_from_this(), offset, wanted))};
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

void ShmArena::Free(size_t offset, size_t bytes) {
  const MutexLock lock(mutex_);
  used_ -= bytes;
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
