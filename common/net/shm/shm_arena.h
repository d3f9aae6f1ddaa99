// ShmArena: the memory of which a process sends payloads to others on its host.
// They read it where it is, and cannot write to it.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/net/shm/shared_memory.h"
#include "common/payload.h"

namespace slackline {

class ShmArena : public std::enable_shared_from_this<ShmArena> {
 public:
  // At most so many bytes; what was never used takes no memory. Unavailable:
  // as of SharedMemory.
  static absl::StatusOr<std::shared_ptr<ShmArena>> Create(size_t bytes);
  explicit ShmArena(SharedMemory memory);

  // Uninitialised memory, 64-byte aligned, which is to be written before the
  // payload is sent.
  struct Room {
    std::byte* data;
    Payload payload;  // The same bytes. The arena outlives it.
  };
  // As low as there is room: what was used last is still in the cache. nullopt
  // if there is none.
  std::optional<Room> Allocate(size_t bytes);

  // Where a payload of this arena begins; nullopt for others.
  std::optional<size_t> OffsetOf(const Payload& payload) const;

  const SharedMemory& memory() const { return memory_; }
  size_t used() const;

 private:
  struct Extent;
  void Free(size_t offset, size_t bytes);

  const SharedMemory memory_;
  mutable Mutex mutex_;
  // Free extents by offset; no two of them touch.
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace slackline
