// Goal: payloads come out of frames as they went in, few frames carry those
// that lie side by side or are small, and a header frame that lies is refused.
// Method: frames are put together and cut as a transport does it.
#include "common/net/payload_frames.h"

#include <cstring>
#include <string>
#include <vector>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/payloads.h"

namespace slackline::payload_frames_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Frames {
  std::vector<std::byte> header;  // Sizes only.
  std::vector<std::string> frames;
};

Frames FramesOf(const std::vector<Payload>& payloads) {
  Frames sent;
  for (size_t i = 0; i < payloads.size();) {
    const PayloadRun run = FirstRun(absl::MakeConstSpan(payloads).subspan(i));
    std::string frame;
    if (run.adjacent) {
      frame.assign(reinterpret_cast<const char*>(payloads[i].data()),
                   run.bytes);
    } else {
      for (size_t k = i; k < i + run.payloads; ++k)
        frame.append(reinterpret_cast<const char*>(payloads[k].data()),
                     payloads[k].size());
    }
    EXPECT_EQ(frame.size(), run.bytes);
    sent.frames.push_back(std::move(frame));
    i += run.payloads;
  }
  if (sent.frames.size() < payloads.size()) {
    sent.header.resize(PayloadSizesBytes(payloads.size()));
    WritePayloadSizes(payloads, sent.header.data());
  }
  return sent;
}

std::vector<size_t> FrameSizes(const std::vector<Payload>& payloads) {
  std::vector<size_t> sizes;
  for (const std::string& frame : FramesOf(payloads).frames)
    sizes.push_back(frame.size());
  return sizes;
}

// What a header frame with these numbers, and frames of these sizes, is taken
// for: the sizes of its payloads, or why it is refused.
std::string Cut(const std::vector<uint64_t>& numbers,
                const std::vector<size_t>& frames, size_t payloads_max = 8) {
  std::vector<std::byte> header(1 + numbers.size() * sizeof(uint64_t));
  if (!numbers.empty())
    std::memcpy(header.data() + 1, numbers.data(), header.size() - 1);
  absl::Span<const std::byte> rest = header;
  FrameSlicer slicer;
  absl::Status status = slicer.ReadSizes(payloads_max, &rest);
  std::string text;
  for (const size_t frame : frames) {
    if (!status.ok()) break;
    const auto sizes = slicer.Slice(frame);
    status = sizes.status();
    if (!status.ok()) break;
    for (const size_t size : *sizes) text += std::to_string(size) + " ";
    text += "| ";
  }
  if (status.ok()) status = slicer.End();
  return status.ok() ? text : std::string(status.message());
}

TEST(PayloadFramesTest, PayloadsSideBySideAreOneFrame) {
  const Payload whole = RandomPayload(1 << 20, 1);
  const Payload other = RandomPayload(1 << 20, 2);
  const Payload a = whole.Slice(0, 300'000);
  const Payload b = whole.Slice(300'000, 500'000);
  const Payload c = whole.Slice(800'000, 1000);
  EXPECT_THAT(FrameSizes({a, b, c}), ElementsAre(801'000));
  EXPECT_THAT(FrameSizes({b, a, c}), ElementsAre(500'000, 300'000, 1000))
      << "in another order";
  EXPECT_THAT(FrameSizes({other, a, b}), ElementsAre(1 << 20, 800'000));
  EXPECT_THAT(FrameSizes({whole}), ElementsAre(1 << 20));
}

TEST(PayloadFramesTest, SmallPayloadsAreCopiedTogether) {
  const Payload a = RandomPayload(1000, 1);
  const Payload b = RandomPayload(2000, 2);
  const Payload large = RandomPayload(kCopiedFrameBytesMax, 3);
  EXPECT_THAT(FrameSizes({a, b, Payload()}), ElementsAre(3000));
  EXPECT_THAT(FrameSizes({a, b, large}),
              ElementsAre(3000, kCopiedFrameBytesMax));
  EXPECT_THAT(FrameSizes({large, b, a}),
              ElementsAre(kCopiedFrameBytesMax, 3000));
}

TEST(PayloadFramesTest, ComeApartAsTheyWere) {
  Rng rng(7);
  for (int round = 0; round < 500; ++round) {
    std::vector<Payload> payloads;
    Payload whole;
    size_t at = 0;
    for (int64_t left = rng.Between(1, 12); left > 0; --left) {
      const size_t bytes =
          rng.Chance(0.1) ? 0 : static_cast<size_t>(rng.Between(1, 40'000));
      if (at + bytes > whole.size() || rng.Chance(0.3)) {
        whole = RandomPayload(100'000, round);
        at = 0;
      }
      payloads.push_back(whole.Slice(at, bytes));
      at += bytes;
    }
    const Frames sent = FramesOf(payloads);
    absl::Span<const std::byte> header = sent.header;
    FrameSlicer slicer;
    Must(slicer.ReadSizes(payloads.size(), &header));
    EXPECT_TRUE(header.empty());
    size_t next = 0;
    for (const std::string& frame : sent.frames) {
      size_t offset = 0;
      for (const size_t size : Must(slicer.Slice(frame.size()))) {
        ASSERT_LT(next, payloads.size());
        EXPECT_TRUE(SameBytes(Payload::Copy(frame.data() + offset, size),
                              payloads[next++]));
        offset += size;
      }
      EXPECT_EQ(offset, frame.size());
    }
    EXPECT_EQ(next, payloads.size());
    Must(slicer.End());
  }
}

TEST(PayloadFramesTest, AHeaderWithoutSizesIsLeftAlone) {
  const std::vector<std::byte> bytes(20, std::byte{8});
  absl::Span<const std::byte> header = bytes;
  FrameSlicer slicer;
  Must(slicer.ReadSizes(2, &header));
  EXPECT_EQ(header.size(), bytes.size());
  EXPECT_THAT(Must(slicer.Slice(70)), ElementsAre(70));
  EXPECT_THAT(Must(slicer.Slice(0)), ElementsAre(0));
  Must(slicer.End());
}

TEST(PayloadFramesTest, SizesThatMakeNoSenseAreRefused) {
  EXPECT_EQ(Cut({3, 5, 0, 7}, {12}), "5 0 7 | ");
  EXPECT_EQ(Cut({3, 5, 0, 7}, {5, 7}), "5 0 | 7 | ");
  EXPECT_EQ(Cut({3, 0, 0, 7}, {0, 7}), "0 0 | 7 | ");
  EXPECT_THAT(Cut({}, {5}), HasSubstr("sizes of 0 payloads"));
  EXPECT_THAT(Cut({0}, {}), HasSubstr("sizes of 0 payloads"));
  EXPECT_THAT(Cut({2, 5}, {5}), HasSubstr("has room for 1 to 1"));
  EXPECT_THAT(Cut({~uint64_t{0}, 5}, {5}), HasSubstr("has room for 1 to 1"));
  EXPECT_THAT(Cut({3, 1, 1, 1}, {3}, /*payloads_max=*/2),
              HasSubstr("3 payloads, at most 2"));
  EXPECT_THAT(Cut({2, 5, 7}, {13}), HasSubstr("of which 12 are"));
  EXPECT_THAT(Cut({2, 5, 7}, {11}), HasSubstr("of which 5 are"));
  EXPECT_THAT(Cut({2, ~uint64_t{0}, 7}, {6}), HasSubstr("of which 0 are"));
  EXPECT_THAT(Cut({3, 5, 0, 7}, {5, 0, 7}), HasSubstr("frame of 0 bytes"));
  EXPECT_THAT(Cut({2, 5, 7}, {5}), HasSubstr("1 of the 2 payloads"));
  EXPECT_THAT(Cut({1, 5}, {5, 0}), HasSubstr("frame of 0 bytes"));
}

}  // namespace slackline::payload_frames_test
