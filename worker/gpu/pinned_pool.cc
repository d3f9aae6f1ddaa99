#include "worker/gpu/pinned_pool.h"

#include <bit>
#include <map>
#include <new>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/status.h"

namespace slackline {

// Shared by the pool and its buffers.
struct PinnedPool::State {
  State(Allocator the_allocator, size_t the_bytes_max)
      : allocator(std::move(the_allocator)), bytes_max(the_bytes_max) {}
  ~State() {
    for (const auto& [size, memories] : free) {
      for (void* const memory : memories) allocator.release(memory);
    }
  }

  void* TakeFree(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = free.find(size);
    if (found == free.end()) return nullptr;
    void* const memory = found->second.back();
    found->second.pop_back();
    if (found->second.empty()) free.erase(found);
    usage.bytes_free -= size;
    return memory;
  }
  // Gives up free buffers, largest first, until `size` more bytes are within
  // the bound. False if they never will be; nothing is given up then.
  bool MakeRoom(size_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (usage.bytes - usage.bytes_free + size > bytes_max) return false;
    while (usage.bytes + size > bytes_max) {
      const size_t largest = free.rbegin()->first;
      allocator.release(TakeFree(largest));
      usage.bytes -= largest;
    }
    return true;
  }

  const Allocator allocator;
  const size_t bytes_max;
  Mutex mutex;
  // By size; no empty entry.
  std::map<size_t, std::vector<void*>> free ABSL_GUARDED_BY(mutex);
  Usage usage ABSL_GUARDED_BY(mutex);
};

PinnedPool::PinnedPool(Allocator allocator, size_t bytes_max)
    : state_(std::make_shared<State>(std::move(allocator), bytes_max)) {}

size_t PinnedPool::SizeFor(size_t bytes) {
  constexpr size_t kPage = 4096;
  if (bytes <= kPage) return kPage;
  const size_t step = std::bit_floor(bytes - 1) / 4;
  return (bytes + step - 1) / step * step;
}

PinnedPool::Buffer PinnedPool::Take(size_t bytes) {
  const size_t size = SizeFor(bytes);
  const MutexLock lock(state_->mutex);
  void* memory = state_->TakeFree(size);
  if (memory == nullptr && state_->MakeRoom(size)) {
    memory = state_->allocator.allocate(size);
    if (memory != nullptr) {
      state_->usage.bytes += size;
      ++state_->usage.allocations;
    }
  }
  if (memory == nullptr) {
    ++state_->usage.fallbacks;
    constexpr std::align_val_t kAlignment{64};
    return Buffer(Buffer::Memory(::operator new(size, kAlignment),
                                 [](void* ordinary) {
                                   ::operator delete(ordinary, kAlignment);
                                 }),
                  size, /*pinned=*/false);
  }
  return Buffer(Buffer::Memory(memory,
                               [state = state_, size](void* pinned) {
                                 const MutexLock guard(state->mutex);
                                 state->free[size].push_back(pinned);
                                 state->usage.bytes_free += size;
                               }),
                size, /*pinned=*/true);
}

PinnedPool::Usage PinnedPool::usage() const {
  const MutexLock lock(state_->mutex);
  return state_->usage;
}

Payload PinnedPool::Buffer::ToPayload(size_t bytes) && {
  SL_CHECK(bytes <= size_,
           absl::StrCat(bytes, " bytes of a buffer of ", size_));
  const std::byte* const start = data();
  return Payload::Wrap(start, bytes, std::move(*this));
}

}  // namespace slackline
