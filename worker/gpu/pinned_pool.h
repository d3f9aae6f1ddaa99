// PinnedPool: page-locked host memory for transfers to and from a GPU, used
// again and again because locking pages takes milliseconds.
//
// Buffers come in sizes of which there are four to a power of two, so at most a
// fifth of one is unused. The memory itself comes from an allocator that the
// caller gives; this file knows nothing of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/payload.h"

namespace slackline {

// Thread-safe. Buffers may outlive the pool.
class PinnedPool {
 public:
  struct Allocator {
    std::function<void*(size_t bytes)> allocate;  // nullptr: no memory left.
    std::function<void(void* memory)> release;    // On any thread.
  };
  // Sole owner of its memory. Gives it back to the pool on destruction, on
  // whatever thread that is. Thread-compatible.
  class Buffer {
   public:
    Buffer(Buffer&&) = default;
    Buffer& operator=(Buffer&&) = default;
    std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }
    size_t size() const { return size_; }  // At least what was asked for.
    bool pinned() const { return pinned_; }
    // The first `bytes` as a payload, with whose last reference the memory goes
    // back. More than size(): fatal.
    Payload ToPayload(size_t bytes) &&;

   private:
    friend class PinnedPool;
    using Memory = std::unique_ptr<void, std::function<void(void*)>>;
    Buffer(Memory memory, size_t size, bool pinned)
        : memory_(std::move(memory)), size_(size), pinned_(pinned) {}
    Memory memory_;
    size_t size_;
    bool pinned_;
  };

  // At most `bytes_max` bytes are allocated at any time, free ones included.
  PinnedPool(Allocator allocator, size_t bytes_max);

  // At least `bytes` bytes, uninitialised. Never waits: whoever holds buffers
  // may need this very one before it lets go. When the bound is reached, free
  // buffers of other sizes are given up; if that does not help, or the
  // allocator has nothing, the buffer is ordinary memory, which is correct but
  // slower to copy to, and is counted.
  Buffer Take(size_t bytes);

  struct Usage {
    size_t bytes = 0;         // Allocated now, free ones included.
    size_t bytes_free = 0;    // Of these, in no buffer.
    int64_t allocations = 0;  // Of the allocator, so far.
    int64_t fallbacks = 0;    // Buffers of ordinary memory, so far.
  };
  Usage usage() const;

  // The size of the buffer for `bytes`, at least 4096.
  static size_t SizeFor(size_t bytes);

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace slackline
