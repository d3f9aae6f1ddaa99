// Goal: bytes behind a Payload live as long as somebody holds them, and only a
// sole holder may write.
#include "common/payload.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace slackline::payload_test {

std::string Text(const Payload& payload) {
  return std::string(reinterpret_cast<const char*>(payload.data()),
                     payload.size());
}

TEST(PayloadTest, AllocatedMemoryIsAlignedForVectors) {
  for (const size_t bytes : {1, 63, 64, 4097}) {
    const Payload payload = Payload::Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(payload.data()) % 64, 0u);
    EXPECT_EQ(payload.size(), bytes);
  }
}

TEST(PayloadTest, NoBytesNeedNoMemory) {
  EXPECT_TRUE(Payload::Allocate(0).empty());
  EXPECT_TRUE(Payload::Copy(nullptr, 0).empty());
  EXPECT_FALSE(Payload().unique());
}

TEST(PayloadTest, ASliceSharesTheBytesAndKeepsThemAlive) {
  Payload slice;
  {
    const Payload whole = Payload::Copy("gradient", 8);
    slice = whole.Slice(2, 3);
    EXPECT_EQ(slice.data(), whole.data() + 2);
    EXPECT_FALSE(whole.unique());
  }
  EXPECT_EQ(Text(slice), "adi");
  EXPECT_TRUE(slice.unique());
}

TEST(PayloadTest, WrappedBytesReleaseTheirOwnerWithTheLastReference) {
  auto owner = std::make_shared<std::string>("frame");
  const std::weak_ptr<std::string> alive = owner;
  Payload payload = Payload::Wrap(owner->data(), owner->size(), owner);
  owner.reset();
  Payload copy = payload;
  payload = Payload();
  ASSERT_FALSE(alive.expired());
  EXPECT_EQ(Text(copy), "frame");
  Payload moved = std::move(copy);
  moved = Payload();
  EXPECT_TRUE(alive.expired());
}

TEST(PayloadTest, CopiesMayBeDroppedOnOtherThreads) {
  auto owner = std::make_shared<int>(0);
  const std::weak_ptr<int> alive = owner;
  const int* const bytes = owner.get();
  Payload payload = Payload::Wrap(bytes, sizeof(int), std::move(owner));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([copy = payload]() mutable {
      for (int i = 0; i < 1000; ++i) {
        Payload another = copy;
        copy = another.Slice(0, another.size());
      }
    });
  }
  payload = Payload();
  for (std::thread& thread : threads) thread.join();
  threads.clear();  // The threads' own copies went with them.
  EXPECT_TRUE(alive.expired());
}

TEST(PayloadDeathTest, SharedOrForeignMemoryIsNotWritten) {
  Payload payload = Payload::Allocate(8);
  payload.MutableData()[0] = std::byte{1};
  const Payload copy = payload;
  EXPECT_DEATH(payload.MutableData(), "shared or not ours");
  char foreign[4] = {};
  Payload wrapped = Payload::Wrap(foreign, sizeof(foreign), 0);
  EXPECT_DEATH(wrapped.MutableData(), "shared or not ours");
}

TEST(PayloadDeathTest, ASliceBeyondTheEndIsABug) {
  const Payload payload = Payload::Copy("abcd", 4);
  EXPECT_DEATH(payload.Slice(3, 2), "slice \\[3, \\+2\\) of 4 bytes");
}

}  // namespace slackline::payload_test
