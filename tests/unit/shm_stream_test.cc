// Goal: messages through shared memory arrive whole and in order whatever their
// sizes, and whatever the reader holds; and a peer that writes what it likes
// harms nobody but itself.
// Method: both ends in one thread, over memory of this process.
#include "common/net/shm/shm_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "common/rng.h"
#include "tests/support/must.h"
#include "tests/support/payloads.h"

namespace slackline::shm_stream_test {

using ::testing::HasSubstr;

class Peer : public ShmPeer {
 public:
  explicit Peer(std::shared_ptr<ShmArena> arena) : arena_(std::move(arena)) {}
  absl::Span<const std::byte> arena() const override {
    return {arena_->memory().data(), arena_->memory().size()};
  }

 private:
  const std::shared_ptr<ShmArena> arena_;
};

class ShmStreamTest : public ::testing::Test {
 protected:
  // The arena has as much for copies, and as much again.
  explicit ShmStreamTest(size_t arena_bytes = size_t{1} << 20,
                         const ChannelOptions& options = {})
      : arena_(Must(ShmArena::Create(2 * arena_bytes, arena_bytes))),
        writer_(stream_.get(), arena_, options),
        reader_(stream_.get(), std::make_shared<Peer>(arena_), options) {}

  static Message Numbered(uint64_t number,
                          const std::vector<size_t>& payloads) {
    Message message;
    message.header.mutable_probe_request()->set_request_id(number);
    for (const size_t bytes : payloads)
      message.payloads.push_back(RandomPayload(bytes, number));
    return message;
  }
  // What is there, with the writer writing on meanwhile.
  std::optional<Message> Receive() {
    for (int i = 0; i < 100000; ++i) {
      std::optional<ShmReader::Incoming> incoming = Must(reader_.Receive());
      if (incoming.has_value()) {
        EXPECT_EQ(incoming->fault, "");
        return std::move(incoming->message);
      }
      if (writer_.flushed() && !reader_.HasInput()) break;
      Must(writer_.Flush());
    }
    return std::nullopt;
  }
  void ExpectNext(const Message& sent) {
    const std::optional<Message> message = Receive();
    ASSERT_TRUE(message.has_value());
    ASSERT_EQ(message->header.SerializeAsString(),
              sent.header.SerializeAsString());
    ASSERT_EQ(message->payloads.size(), sent.payloads.size());
    for (size_t i = 0; i < sent.payloads.size(); ++i) {
      ASSERT_TRUE(SameBytes(message->payloads[i], sent.payloads[i])) << i;
    }
  }

  const std::unique_ptr<ShmStream> stream_ = std::make_unique<ShmStream>();
  const std::shared_ptr<ShmArena> arena_;
  ShmWriter writer_;
  ShmReader reader_;
};

TEST_F(ShmStreamTest, MessagesOfAllSizesArriveInOrder) {
  Rng rng(1);
  std::deque<Message> sent;
  for (uint64_t number = 1; number <= 3000; ++number) {
    std::vector<size_t> payloads;
    const uint64_t count = rng.Below(5);
    for (uint64_t i = 0; i < count; ++i) {
      const size_t most = size_t{1} << rng.Below(18);
      payloads.push_back(rng.Below(most + 1));
    }
    sent.push_back(Numbered(number, payloads));
    ASSERT_TRUE(writer_.Send(sent.back()));
    while (sent.size() > rng.Below(30)) {
      ExpectNext(sent.front());
      sent.pop_front();
    }
  }
  for (; !sent.empty(); sent.pop_front()) ExpectNext(sent.front());
  EXPECT_EQ(Receive(), std::nullopt);
  EXPECT_TRUE(writer_.ReclaimAll());
  EXPECT_EQ(arena_->used(), 0u);
}

TEST_F(ShmStreamTest, WhatIsLargerThanRingAndArenaArrives) {
  for (const size_t bytes :
       {ShmStream::kRingBytes, size_t{1} << 20, size_t{9} << 20}) {
    const Message large = Numbered(7, {bytes, 0, 3});
    ASSERT_TRUE(writer_.Send(large));
    ExpectNext(large);
  }
}

TEST_F(ShmStreamTest, AWriterGetsOnWhateverItsReaderHolds) {
  std::vector<Message> held;
  for (uint64_t number = 1; number <= 2 * ShmStream::kSlots; ++number) {
    ASSERT_TRUE(writer_.Send(Numbered(number, {3000})));
    held.push_back(*Receive());
  }
  EXPECT_GT(arena_->used(), arena_->memory().size() / 2 - 4096);
  for (uint64_t number = 1; number <= held.size(); ++number) {
    const Payload& payload = held[number - 1].payloads[0];
    EXPECT_EQ(
        std::memcmp(payload.data(), RandomPayload(3000, number).data(), 3000),
        0);
  }
  EXPECT_FALSE(writer_.ReclaimAll());
  held.clear();
  EXPECT_TRUE(writer_.ReclaimAll());
  EXPECT_EQ(arena_->used(), 0u);
}

TEST_F(ShmStreamTest, WhatIsInTheArenaIsNotCopied) {
  Payload made = arena_->Allocate(5000);
  std::memset(made.MutableData(), 7, 5000);
  Message message = Numbered(1, {});
  message.payloads.push_back(made.Slice(1000, 4000));
  ASSERT_TRUE(writer_.Send(message));
  EXPECT_EQ(Receive()->payloads[0].data(), made.data() + 1000);
}

TEST_F(ShmStreamTest, WhatIsMadeInTheArenaLeavesRoomForCopies) {
  const size_t half = arena_->memory().size() / 2;
  const Payload made = arena_->Allocate(half);
  EXPECT_TRUE(arena_->OffsetOf(made).has_value());
  Payload on_heap = arena_->Allocate(64);
  EXPECT_FALSE(arena_->OffsetOf(on_heap).has_value());
  std::memset(on_heap.MutableData(), 7, on_heap.size());
  const Payload copy = arena_->Copy(made.data(), half);
  EXPECT_TRUE(arena_->OffsetOf(copy).has_value());
  EXPECT_TRUE(arena_->Copy(made.data(), 64).empty()) << "that is all of it";
}

TEST_F(ShmStreamTest, EachSideIsWokenOnceAndOnlyWhenItSleeps) {
  ASSERT_TRUE(writer_.Send(Numbered(1, {})));
  EXPECT_FALSE(writer_.TakeWake());
  EXPECT_FALSE(reader_.Sleep()) << "there is a message";
  ASSERT_TRUE(Receive().has_value());
  EXPECT_TRUE(reader_.Sleep());
  EXPECT_FALSE(writer_.TakeWake()) << "for nothing new";
  ASSERT_TRUE(writer_.Send(Numbered(2, {})));
  EXPECT_TRUE(writer_.TakeWake());
  EXPECT_FALSE(writer_.TakeWake());

  ASSERT_TRUE(writer_.Send(Numbered(3, {size_t{9} << 20})));
  EXPECT_FALSE(writer_.flushed());
  EXPECT_FALSE(reader_.TakeWake());
  EXPECT_TRUE(writer_.Sleep());
  Must(reader_.Receive());
  EXPECT_TRUE(reader_.TakeWake());
  EXPECT_FALSE(reader_.TakeWake());
  EXPECT_FALSE(writer_.Sleep()) << "there is room";
}

class ShmQueueTest : public ShmStreamTest {
 protected:
  ShmQueueTest() : ShmStreamTest(size_t{1} << 20, {.send_queue_max = 2}) {}
};

TEST_F(ShmQueueTest, AFullQueueRefuses) {
  std::deque<Message> sent;
  uint64_t number = 1;
  while (writer_.Send(Numbered(number, {2000}))) {
    sent.push_back(Numbered(number++, {2000}));
    ASSERT_LT(number, 1000u);
  }
  EXPECT_FALSE(writer_.flushed());
  for (; !sent.empty(); sent.pop_front()) ExpectNext(sent.front());
  EXPECT_TRUE(writer_.Send(Numbered(1, {})));
}

TEST_F(ShmQueueTest, OnlyWhatNobodyHasBegunToWriteGoesElsewhere) {
  ASSERT_TRUE(writer_.Send(Numbered(1, {size_t{9} << 20})));
  ASSERT_TRUE(writer_.Send(Numbered(2, {})));
  const std::deque<Message> left = writer_.TakeWaiting();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left.front().header.probe_request().request_id(), 2u);
}

class ShmBoundsTest : public ShmStreamTest {
 protected:
  ShmBoundsTest()
      : ShmStreamTest(size_t{1} << 20,
                      {.payloads_max = 3, .message_bytes_max = 10000}) {}

  std::string Fault() {
    const auto incoming = reader_.Receive();
    return incoming.ok() && incoming->has_value() ? (*incoming)->fault : "";
  }
};

TEST_F(ShmBoundsTest, TooManyPayloadsAreTakenAwayAndNothingElse) {
  ASSERT_TRUE(writer_.Send(Numbered(1, {1, 2, 3, 4, 5})));
  EXPECT_THAT(Fault(), HasSubstr("more than 3"));
  const Message good = Numbered(2, {1, 2, 3});
  ASSERT_TRUE(writer_.Send(good));
  ExpectNext(good);
}

TEST_F(ShmBoundsTest, AMessageBeyondTheBoundBreaksTheStream) {
  ASSERT_TRUE(writer_.Send(Numbered(1, {6000, 6000})));
  const absl::Status broken = reader_.Receive().status();
  EXPECT_TRUE(absl::IsInvalidArgument(broken)) << broken;
  EXPECT_THAT(std::string(broken.message()), HasSubstr("at most 10000"));
}

TEST_F(ShmStreamTest, AReaderThatLiesBreaksTheStream) {
  ASSERT_TRUE(writer_.Send(Numbered(1, {})));
  stream_->read = 1 << 30;
  for (int i = 0; i < 10000 && !writer_.broken(); ++i)
    ASSERT_TRUE(writer_.Send(Numbered(2, {2000})));
  EXPECT_TRUE(writer_.broken());
  EXPECT_TRUE(absl::IsInvalidArgument(writer_.Flush()));
}

// The peer writes anything, anywhere, at any time.
TEST_F(ShmStreamTest, ARingFullOfAnythingEndsInAnErrorOrInMessages) {
  Rng rng(2);
  int broken = 0;
  for (int round = 0; round < 3000; ++round) {
    ShmReader reader(stream_.get(), std::make_shared<Peer>(arena_),
                     {.message_bytes_max = 1 << 20});
    ShmWriter writer(stream_.get(), arena_, {});
    stream_->read = stream_->written = 0;
    for (uint64_t number = 0; number < 4; ++number)
      writer.Send(Numbered(number, {rng.Below(100), rng.Below(10000)}));
    const uint64_t there = stream_->written;
    for (uint64_t flips = rng.Below(6); flips > 0; --flips) {
      // Among them the heads, which have zeros where a lie is worth most.
      const uint64_t at = rng.Below(std::min<uint64_t>(there, 400));
      stream_->ring[at] ^= std::byte(1 << rng.Below(8));
    }
    if (rng.Chance(0.2)) stream_->written = rng.Next();
    while (true) {
      const auto incoming = reader.Receive();
      if (!incoming.ok()) ++broken;
      if (!incoming.ok() || !incoming->has_value()) break;
      for (const Payload& payload : (*incoming)->message.payloads) {
        // All of it can be read.
        const Payload copy = Payload::Copy(payload.data(), payload.size());
        ASSERT_LE(copy.size(), size_t{1} << 20);
      }
    }
  }
  EXPECT_GT(broken, 500);
}

}  // namespace slackline::shm_stream_test
