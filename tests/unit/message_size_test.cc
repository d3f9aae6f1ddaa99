#include "worker/client/message_size.h"

#include "gtest/gtest.h"

namespace slackline::message_size_test {

constexpr size_t kKib = 1024;

MessageSize Size() {
  return MessageSize({.bytes_min = 256 * kKib,
                      .bytes_max = 1024 * kKib,
                      .time = absl::Milliseconds(1)});
}

void Measure(MessageSize& size, size_t bytes, absl::Duration took) {
  for (int i = 0; i < 100; ++i) size.Add(bytes, took);
}

TEST(MessageSizeTest, IsWhatTheLinkCarriesInItsTimeWithinBounds) {
  MessageSize size = Size();
  EXPECT_EQ(size.bytes(), 256 * kKib) << "before the first measurement";
  Measure(size, 1000 * kKib, absl::Milliseconds(2));
  EXPECT_NEAR(static_cast<double>(size.bytes()), 500 * kKib, kKib);
  Measure(size, 1000 * kKib, absl::Microseconds(300));
  EXPECT_NEAR(static_cast<double>(size.bytes()), 1024 * kKib, kKib);
  Measure(size, 1000 * kKib, absl::Milliseconds(80));
  EXPECT_EQ(size.bytes(), 256 * kKib) << "100 Mbit/s";
}

TEST(MessageSizeTest, OneAnswerCountsForLittle) {
  MessageSize size = Size();
  size.Add(4096 * kKib, absl::ZeroDuration());
  EXPECT_EQ(size.bytes(), 352 * kKib);
  Measure(size, 4096 * kKib, absl::Milliseconds(1));
  size.Add(4096 * kKib, absl::Seconds(1));
  EXPECT_GT(size.bytes(), 880 * kKib);
}

TEST(MessageSizeTest, WhatIsSmallSaysNothingOfTheLink) {
  MessageSize size = Size();
  Measure(size, 1024 * kKib, absl::Milliseconds(1));
  Measure(size, 4 * kKib, absl::Milliseconds(1));
  EXPECT_GT(size.bytes(), 1000 * kKib);
}

}  // namespace slackline::message_size_test
