// Goal: pinned memory is used again, never beyond the bound, and comes back
// whatever thread lets go of it. The allocator is a stand-in that keeps count.
#include "worker/gpu/pinned_pool.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "gtest/gtest.h"

namespace slackline::pinned_pool_test {

// Ordinary memory, counted. Outlives the pools that use it.
class CountingAllocator {
 public:
  ~CountingAllocator() { EXPECT_TRUE(live_.empty()) << "memory not released"; }
  PinnedPool::Allocator get() {
    return {.allocate = [this](size_t bytes) -> void* {
              const std::lock_guard<std::mutex> lock(mutex_);
              if (broken_) return nullptr;
              void* const memory = std::malloc(bytes);
              live_[memory] = bytes;
              bytes_ += bytes;
              bytes_max_ = std::max(bytes_max_, bytes_);
              return memory;
            },
            .release =
                [this](void* memory) {
                  const std::lock_guard<std::mutex> lock(mutex_);
                  const auto found = live_.find(memory);
                  ASSERT_NE(found, live_.end()) << "released what is not there";
                  bytes_ -= found->second;
                  live_.erase(found);
                  std::free(memory);
                }};
  }
  void Break() { broken_ = true; }
  size_t bytes_max() const { return bytes_max_; }

 private:
  std::mutex mutex_;
  std::map<void*, size_t> live_;
  size_t bytes_ = 0;
  size_t bytes_max_ = 0;
  bool broken_ = false;
};

TEST(PinnedPool, SizesHoldWhatIsAskedForAndWasteLittle) {
  EXPECT_EQ(PinnedPool::SizeFor(0), 4096u);
  EXPECT_EQ(PinnedPool::SizeFor(4096), 4096u);
  EXPECT_EQ(PinnedPool::SizeFor(4097), 5120u);
  EXPECT_EQ(PinnedPool::SizeFor(8192), 8192u);
  EXPECT_EQ(PinnedPool::SizeFor(size_t{1} << 40), size_t{1} << 40);
  Rng rng(5);
  for (int i = 0; i < 1000; ++i) {
    const size_t bytes = 4096 + rng.Below(uint64_t{1} << (13 + i % 20));
    const size_t size = PinnedPool::SizeFor(bytes);
    EXPECT_GE(size, bytes);
    EXPECT_LE(size, bytes + bytes / 4 + 1);
    EXPECT_EQ(PinnedPool::SizeFor(size), size) << "a size is its own";
  }
}

TEST(PinnedPool, AReturnedBufferIsTakenAgain) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 1 << 20);
  std::byte* first = nullptr;
  {
    const PinnedPool::Buffer buffer = pool.Take(10000);
    first = buffer.data();
    EXPECT_TRUE(buffer.pinned());
    EXPECT_EQ(buffer.size(), PinnedPool::SizeFor(10000));
    EXPECT_EQ(pool.usage().bytes_free, 0u);
  }
  EXPECT_EQ(pool.usage().bytes_free, PinnedPool::SizeFor(10000));
  const PinnedPool::Buffer again = pool.Take(9900);  // Of the same size.
  EXPECT_EQ(again.data(), first);
  const PinnedPool::Buffer other = pool.Take(9900);
  EXPECT_NE(other.data(), first);
  EXPECT_EQ(pool.usage().allocations, 2);
}

TEST(PinnedPool, APayloadGivesItsBufferBackWithTheLastReference) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 1 << 20);
  PinnedPool::Buffer buffer = pool.Take(8);
  std::memcpy(buffer.data(), "gradient", 8);
  std::optional<Payload> payload = std::move(buffer).ToPayload(8);
  std::optional<Payload> slice = payload->Slice(4, 4);
  payload.reset();
  EXPECT_EQ(pool.usage().bytes_free, 0u);
  EXPECT_EQ(std::memcmp(slice->data(), "ient", 4), 0);
  slice.reset();
  EXPECT_EQ(pool.usage().bytes_free, 4096u);
}

TEST(PinnedPool, BeyondTheBoundBuffersAreOrdinaryMemory) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 3 * 4096);
  std::vector<PinnedPool::Buffer> held;
  for (int i = 0; i < 3; ++i) {
    held.push_back(pool.Take(4096));
    EXPECT_TRUE(held.back().pinned());
  }
  for (int i = 0; i < 2; ++i) {
    PinnedPool::Buffer fallback = pool.Take(4000);
    EXPECT_FALSE(fallback.pinned());
    std::memset(fallback.data(), 1, fallback.size());
  }
  EXPECT_EQ(pool.usage().fallbacks, 2);
  EXPECT_EQ(pool.usage().bytes, 3u * 4096);
  held.pop_back();
  EXPECT_TRUE(pool.Take(4096).pinned()) << "there is room again";
}

TEST(PinnedPool, FreeBuffersOfOtherSizesMakeRoom) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 64 * 1024);
  const PinnedPool::Buffer held = pool.Take(16 * 1024);
  for (const size_t bytes : {8 * 1024, 32 * 1024}) (void)pool.Take(bytes);
  EXPECT_EQ(pool.usage().bytes_free, 40u * 1024);
  const PinnedPool::Buffer large = pool.Take(40 * 1024);
  EXPECT_TRUE(large.pinned());
  // The largest had to go, and was enough.
  EXPECT_EQ(pool.usage().bytes, (16u + 8 + 40) * 1024);
  EXPECT_EQ(pool.usage().bytes_free, 8u * 1024);
}

TEST(PinnedPool, WhatCanNeverFitCostsNoFreeBuffer) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 64 * 1024);
  const PinnedPool::Buffer held = pool.Take(32 * 1024);
  (void)pool.Take(16 * 1024);
  EXPECT_FALSE(pool.Take(40 * 1024).pinned());
  EXPECT_EQ(pool.usage().bytes_free, 16u * 1024);
}

TEST(PinnedPool, WithoutPinnedMemoryLeftBuffersAreOrdinaryMemory) {
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), 1 << 20);
  allocator.Break();
  EXPECT_FALSE(pool.Take(1).pinned());
  EXPECT_EQ(pool.usage().bytes, 0u);
}

TEST(PinnedPool, BuffersOutliveThePool) {
  CountingAllocator allocator;
  std::optional<PinnedPool> pool(std::in_place, allocator.get(), 1 << 20);
  PinnedPool::Buffer buffer = pool->Take(100);
  pool.reset();
  std::memset(buffer.data(), 7, buffer.size());
}

// Takers on four threads hand every buffer to another thread, which checks what
// the taker wrote and lets go: no two live buffers share memory, and the bound
// holds throughout.
TEST(PinnedPool, ThreadsTakeAndReturnAtOnce) {
  constexpr size_t kBound = 256 * 1024;
  CountingAllocator allocator;
  PinnedPool pool(allocator.get(), kBound);
  std::mutex mutex;
  std::vector<std::pair<Payload, unsigned char>> passed_on;
  std::vector<std::thread> threads;
  for (unsigned char thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      Rng rng(thread);
      for (int i = 0; i < 2000; ++i) {
        const size_t bytes = 1 + rng.Below(20000);
        PinnedPool::Buffer buffer = pool.Take(bytes);
        const unsigned char mark = static_cast<unsigned char>(rng.Below(256));
        std::memset(buffer.data(), mark, bytes);
        std::pair<Payload, unsigned char> mine(
            std::move(buffer).ToPayload(bytes), mark);
        std::pair<Payload, unsigned char> other;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          passed_on.push_back(std::move(mine));
          if (passed_on.size() >= 8) {
            const size_t chosen = rng.Below(passed_on.size());
            std::swap(passed_on[chosen], passed_on.back());
            other = std::move(passed_on.back());
            passed_on.pop_back();
          }
        }
        for (const std::byte value : other.first.bytes()) {
          ASSERT_EQ(value, std::byte{other.second});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  passed_on.clear();
  EXPECT_LE(allocator.bytes_max(), kBound);
  EXPECT_EQ(pool.usage().bytes, pool.usage().bytes_free);
}

}  // namespace slackline::pinned_pool_test
