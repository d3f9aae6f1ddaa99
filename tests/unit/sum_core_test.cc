#include "server/sums/sum_core.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/allreduce_view.h"

namespace slackline::sum_core_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kRun = 9;
constexpr uint64_t kGroup = 4;

class SumCoreTest : public ::testing::Test {
 protected:
  static std::shared_ptr<const View> ViewOf(int workers, uint64_t group) {
    return AllReduceView(kRun, group, workers);
  }
  static PeerId PeerOf(int rank) {
    return {.kind = PeerId::Kind::kSum,
            .index = rank,
            .instance = IncarnationOf(rank)};
  }
  static Message PartOf(int rank, int ranks, const std::vector<float>& values,
                        int32_t piece = 0, uint64_t group = kGroup) {
    Message message;
    message.header.set_run(kRun);
    wire::SumRequest& request = *message.header.mutable_sum_request();
    request.set_group(group);
    request.set_rank(rank);
    request.set_ranks(ranks);
    request.set_operation(7);
    request.set_piece(piece);
    message.payloads.push_back(
        Payload::Copy(values.data(), values.size() * sizeof(float)));
    return message;
  }
  std::vector<Outgoing> Tell(const PeerId& from, const Message& message) {
    SumCore::Effects effects;
    core_.OnMessage(from, message, &effects);
    return effects.sends;
  }
  std::vector<Outgoing> Tell(int rank, const Message& message) {
    return Tell(PeerOf(rank), message);
  }
  static std::vector<float> SumIn(const Outgoing& outgoing) {
    const Payload& payload = outgoing.message.payloads.at(0);
    std::vector<float> values(payload.size() / sizeof(float));
    std::memcpy(values.data(), payload.data(), payload.size());
    return values;
  }
  static std::string Refusal(const std::vector<Outgoing>& sends) {
    EXPECT_THAT(sends, SizeIs(1));
    EXPECT_THAT(sends.front().message.payloads, IsEmpty());
    return sends.front().message.header.sum_reply().refused();
  }

  SumCore core_{SumCore::Options{
      .waiting_bytes_max = 64, .waiting_parts_max = 4, .memory = nullptr}};
};

TEST_F(SumCoreTest, EveryRankGetsTheSumInTheOrderOfTheRanks) {
  // In another order the small numbers would be lost.
  const std::vector<std::vector<float>> parts = {{1e8f, 1}, {-1e8f, 2}, {1, 3}};
  std::vector<int> order = {0, 1, 2};
  do {
    core_.OnView(ViewOf(3, kGroup));
    for (const int rank : {order[0], order[1]})
      EXPECT_THAT(Tell(rank, PartOf(rank, 3, parts[rank])), IsEmpty());
    EXPECT_EQ(core_.waiting_bytes(), 16u);
    const std::vector<Outgoing> sends =
        Tell(order[2], PartOf(order[2], 3, parts[order[2]]));
    ASSERT_THAT(sends, SizeIs(3));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(sends[rank].to, PeerOf(rank));
      EXPECT_EQ(sends[rank].message.header.run(), kRun);
      EXPECT_EQ(sends[rank].message.header.sum_reply().operation(), 7);
      EXPECT_THAT(SumIn(sends[rank]), testing::ElementsAre(1, 6));
    }
    EXPECT_EQ(core_.waiting_bytes(), 0u);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(core_.sums(), 6);
}

TEST_F(SumCoreTest, PiecesOfAnOperationAreSummedApart) {
  core_.OnView(ViewOf(2, kGroup));
  EXPECT_THAT(Tell(0, PartOf(0, 2, {1}, 0)), IsEmpty());
  EXPECT_THAT(Tell(0, PartOf(0, 2, {10}, 1)), IsEmpty());
  const auto second = Tell(1, PartOf(1, 2, {20}, 1));
  ASSERT_THAT(second, SizeIs(2));
  EXPECT_EQ(second[0].message.header.sum_reply().piece(), 1);
  EXPECT_THAT(SumIn(second[0]), testing::ElementsAre(30));
  EXPECT_THAT(Tell(1, PartOf(1, 2, {2}, 0)), SizeIs(2));
}

TEST_F(SumCoreTest, WhoComesBeforeTheViewIsAskedToComeAgain) {
  const Message part = PartOf(0, 2, {1});
  for (const bool early : {false, true}) {
    if (early) core_.OnView(ViewOf(2, kGroup - 1));
    const auto sends = Tell(0, part);
    ASSERT_THAT(sends, SizeIs(1));
    EXPECT_TRUE(sends[0].message.header.sum_reply().retry());
    EXPECT_EQ(core_.waiting_bytes(), 0u);
  }
  core_.OnView(ViewOf(2, kGroup));
  EXPECT_THAT(Tell(0, part), IsEmpty());
}

TEST_F(SumCoreTest, ANewGroupBeginsWithNothing) {
  core_.OnView(ViewOf(3, kGroup));
  EXPECT_THAT(Tell(0, PartOf(0, 3, {1})), IsEmpty());
  core_.OnView(ViewOf(2, kGroup + 1));
  EXPECT_EQ(core_.waiting_bytes(), 0u);
  EXPECT_THAT(Refusal(Tell(1, PartOf(1, 3, {1}))), HasSubstr("is over"));
  EXPECT_THAT(Tell(0, PartOf(0, 2, {1}, 0, kGroup + 1)), IsEmpty());
  EXPECT_THAT(Tell(1, PartOf(1, 2, {2}, 0, kGroup + 1)), SizeIs(2));
}

TEST_F(SumCoreTest, WhatMakesNoSenseIsRefusedAndChangesNothing) {
  core_.OnView(ViewOf(2, kGroup));
  EXPECT_THAT(Tell(0, PartOf(0, 2, {1, 2})), IsEmpty());
  const auto changed = [](int rank, auto change) {
    Message message = PartOf(rank, 2, {1, 2});
    change(*message.header.mutable_sum_request(), message);
    return message;
  };
  using Request = wire::SumRequest;
  const struct {
    PeerId from;
    Message message;
    const char* says;
  } cases[] = {
      {PeerOf(2), PartOf(1, 2, {1, 2}), "no worker of this job"},
      {{PeerId::Kind::kSum, 1, 7}, PartOf(1, 2, {1, 2}), "no worker"},
      {{PeerId::Kind::kWorker, 1, 101}, PartOf(1, 2, {1, 2}), "no worker"},
      {PeerOf(1), PartOf(0, 2, {1, 2}, 1), "rank 0 is sum.0.100"},
      {PeerOf(0), PartOf(0, 2, {1, 2}), "a second part of rank 0"},
      {PeerOf(1), PartOf(1, 2, {1}), "a part of 4 bytes, those of other"},
      {PeerOf(1), PartOf(1, 2, {}), "a part of 0 bytes"},
      {PeerOf(1), PartOf(1, 3, {1, 2}), "a sum of 3 ranks in a group of 2"},
      {PeerOf(1), PartOf(1, 1, {1, 2}), "a sum of 1 ranks"},
      {PeerOf(1), PartOf(2, 2, {1, 2}), "rank 2, operation"},
      {PeerOf(1), PartOf(-1, 2, {1, 2}), "rank -1, operation"},
      {PeerOf(1), PartOf(1, 2, {1, 2}, -1), "piece -1"},
      {PeerOf(1), changed(1, [](Request& r, Message&) { r.set_operation(-1); }),
       "operation -1"},
      {PeerOf(1), changed(1, [](Request&, Message& m) { m.payloads.clear(); }),
       "0 payloads"},
      {PeerOf(1), changed(1, [](Request&, Message& m) { m.header.set_run(1); }),
       "another run"},
      {PeerOf(1),
       changed(1,
               [](Request&, Message& m) {
                 m.payloads[0] = Payload::Allocate(kSumPieceBytesMax + 4);
               }),
       "a part of 1048580 bytes"},
      {PeerOf(1),
       changed(1,
               [](Request&, Message& m) {
                 m.payloads[0] = m.payloads[0].Slice(1, 5);
               }),
       "a part of 5 bytes"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Refusal(Tell(c.from, c.message)), HasSubstr(c.says));
    EXPECT_EQ(core_.waiting_bytes(), 8u) << c.says;
  }
  EXPECT_THAT(Tell(1, PartOf(1, 2, {3, 4})), SizeIs(2));
}

TEST_F(SumCoreTest, PartsThatWaitAreBounded) {
  core_.OnView(ViewOf(2, kGroup));
  const std::vector<float> half(8, 1.0f);  // 32 of 64 bytes.
  EXPECT_THAT(Tell(0, PartOf(0, 2, half, 0)), IsEmpty());
  EXPECT_THAT(Tell(0, PartOf(0, 2, half, 1)), IsEmpty());
  EXPECT_THAT(Refusal(Tell(0, PartOf(0, 2, {1}, 2))),
              HasSubstr("at most 4 parts of 64 bytes are kept"));
  // Once they are summed there is room again, for as many parts.
  EXPECT_THAT(Tell(1, PartOf(1, 2, half, 0)), SizeIs(2));
  EXPECT_THAT(Tell(1, PartOf(1, 2, half, 1)), SizeIs(2));
  for (int piece = 2; piece < 6; ++piece)
    EXPECT_THAT(Tell(0, PartOf(0, 2, {1}, piece)), IsEmpty());
  EXPECT_THAT(Refusal(Tell(0, PartOf(0, 2, {1}, 6))), HasSubstr("4 parts"));
}

}  // namespace slackline::sum_core_test
