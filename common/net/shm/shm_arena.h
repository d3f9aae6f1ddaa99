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

class ShmArena : public PayloadMemory,
                 public std::enable_shared_from_this<ShmArena> {
 public:
  // An arena of so many bytes, of which `copies_max` are for copies and all
  // others for what is made here; what was never used takes no memory.
  // Unavailable: as of SharedMemory.
  static absl::StatusOr<std::shared_ptr<ShmArena>> Create(size_t bytes,
                                                          size_t copies_max);
  ShmArena(SharedMemory memory, size_t copies_max);

  // The payload is from the heap where there is no room. The arena outlives its
  // payloads.
  Payload Allocate(size_t bytes) override;
  // A copy of what is not in the arena. Empty: there is no room.
  Payload Copy(const void* data, size_t bytes);

  // Where a payload of this arena begins; nullopt for others.
  std::optional<size_t> OffsetOf(const Payload& payload) const;

  const SharedMemory& memory() const { return memory_; }
  size_t used() const;

 private:
  struct Extent;
  // Takes the lowest room there is: what was used last is still in the cache.
  // Empty if there is none.
  Payload Take(size_t bytes, bool is_copy);
  void Free(const Extent& extent);

  const SharedMemory memory_;
  const size_t copies_max_;
  mutable Mutex mutex_;
  // Free extents by offset; no two of them touch.
  std::map<size_t, size_t> free_ ABSL_GUARDED_BY(mutex_);
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t copies_ ABSL_GUARDED_BY(mutex_) = 0;  // Bytes of copies in used_.
};

}  // namespace slackline
