// Goal: what one shard thread has under way to another one stays within its
// bounds, whoever feeds what; a late or a missing reply leads to a probe, and
// to nothing else. Method: examples on virtual time, and random feeds over a
// link that stands still now and then.
#include "server/shard/feed_link.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/unread_bytes.h"

namespace slackline::feed_link_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

FeedLink::Feed FeedOf(int32_t shard) {
  FeedLink::Feed feed{.shard = shard, .feed = {}};
  feed.feed.set_follower(7);
  return feed;
}

wire::HandOverReply ReplyOf(int32_t shard, uint64_t number) {
  wire::HandOverReply reply;
  reply.set_shard(shard);
  *reply.mutable_feed() = FeedOf(shard).feed;
  reply.set_number(number);
  return reply;
}

std::vector<int32_t> ShardsOf(const std::vector<FeedLink::Feed>& feeds) {
  std::vector<int32_t> shards;
  for (const FeedLink::Feed& feed : feeds) shards.push_back(feed.shard);
  return shards;
}

class FeedLinkTest : public ::testing::Test {
 protected:
  uint64_t Send(int32_t shard, size_t bytes = 10) {
    return link_.OnSend(FeedOf(shard), bytes, now_);
  }
  std::vector<FeedLink::Feed> Reply(int32_t shard, uint64_t number) {
    return link_.OnReply(ReplyOf(shard, number), now_);
  }

  absl::Time now_ = absl::UnixEpoch();
  FeedLink link_{{.window_bytes = 100,
                  .messages_max = 4,
                  .probe_min = absl::Milliseconds(50),
                  .probe_max = absl::Milliseconds(300)}};
};

// ---- The budget -------------------------------------------------------------

TEST_F(FeedLinkTest, AllFeedsShareTheBytes) {
  Send(0, 60);
  EXPECT_TRUE(link_.HasRoom(40));
  EXPECT_FALSE(link_.HasRoom(41));
  EXPECT_TRUE(link_.HasRoomBehind(30, 10));
  EXPECT_FALSE(link_.HasRoomBehind(30, 11));
  const uint64_t second = Send(1, 40);
  EXPECT_FALSE(link_.HasRoom(1));
  Reply(0, second - 1);
  EXPECT_TRUE(link_.HasRoom(60));
  EXPECT_EQ(link_.bytes_under_way(), 40u);
}

TEST_F(FeedLinkTest, MessagesAreBoundedToo) {
  for (int i = 0; i < 4; ++i) Send(i, 1);
  EXPECT_FALSE(link_.HasRoom(1));
}

TEST_F(FeedLinkTest, WhatIsLargerThanAllGoesWhenNothingElseIsUnderWay) {
  EXPECT_TRUE(link_.HasRoom(1000));
  const uint64_t large = Send(0, 1000);
  EXPECT_FALSE(link_.HasRoom(1));
  Reply(0, large);
  Send(0, 1);
  EXPECT_FALSE(link_.HasRoom(1000));
}

TEST_F(FeedLinkTest, WhoWaitsGoesBeforeWhoComesLater) {
  const uint64_t first = Send(0, 100);
  link_.Wait(ShardId{5});
  link_.Wait(ShardId{2});
  link_.Wait(ShardId{5});
  EXPECT_THAT(link_.TakeWaiting(), IsEmpty()) << "there is no room";
  Reply(0, first);
  EXPECT_FALSE(link_.HasRoom(1)) << "of those who came later";
  EXPECT_THAT(link_.TakeWaiting(), ElementsAre(ShardId{5}, ShardId{2}));
  EXPECT_TRUE(link_.HasRoom(1));
}

TEST(UnreadBytes, TheBoundHasRoomForWhatAnyPeerMayHaveUnderWay) {
  const FeedLink::Options link;
  for (const int kib : {1, 256, 4096, 1 << 20}) {
    config::Limits limits;
    limits.set_shard_kib(kib);
    limits.set_window_kib(std::max(kib, 4096));
    const int64_t bound = UnreadBytesMax(limits, link);
    const int64_t shard = int64_t{1024} * kib;
    const int64_t adam = 3 * shard;  // Values and two slots.
    EXPECT_GT(bound, static_cast<int64_t>(link.window_bytes) + adam);
    EXPECT_GE(bound, 2 * int64_t{1024} * limits.window_kib());
    EXPECT_GE(bound, ChannelOptions().unread_bytes_max);
  }
}

// ---- Replies ----------------------------------------------------------------

TEST_F(FeedLinkTest, WhoWasPassedOverIsInDoubtOnce) {
  Send(0);
  Send(1);
  Send(0);
  const uint64_t last = Send(2);
  EXPECT_THAT(ShardsOf(Reply(2, last)), ElementsAre(0, 1));
  EXPECT_THAT(Reply(2, last), IsEmpty());
  EXPECT_EQ(link_.bytes_under_way(), 0u);
}

TEST_F(FeedLinkTest, ALateReplyPassesNobodyOver) {
  const uint64_t first = Send(0);
  const uint64_t second = Send(1);
  Reply(1, second);
  Send(2);
  EXPECT_THAT(Reply(0, first), IsEmpty());
  EXPECT_EQ(link_.messages_under_way(), 1u);
}

TEST_F(FeedLinkTest, RepliesToWhatWasNeverSentAreIgnored) {
  const uint64_t last = Send(0);
  EXPECT_THAT(Reply(0, last + 1), IsEmpty());
  EXPECT_EQ(link_.messages_under_way(), 1u);
}

// Numbers begin at 1 in each life of a server.
TEST_F(FeedLinkTest, RepliesToALifeBeforeAreIgnored) {
  Send(0);
  const uint64_t second = Send(1);
  wire::HandOverReply before = ReplyOf(1, second);
  before.mutable_feed()->set_term(3);
  EXPECT_THAT(link_.OnReply(before, now_), IsEmpty());
  EXPECT_THAT(Reply(0, second), IsEmpty()) << "of another shard";
  EXPECT_EQ(link_.messages_under_way(), 2u);
  EXPECT_THAT(ShardsOf(Reply(1, second)), ElementsAre(0));
}

// ---- Probes -----------------------------------------------------------------

TEST_F(FeedLinkTest, SilenceIsFollowedByAProbeOfTheOldestAndBacksOff) {
  Send(3);
  Send(1);
  std::vector<absl::Duration> gaps;
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(link_.OnTick(now_).has_value());
    const absl::Time before = now_;
    now_ = link_.NextWakeup();
    gaps.push_back(now_ - before);
    const auto feed = link_.OnTick(now_);
    ASSERT_TRUE(feed.has_value());
    EXPECT_EQ(feed->shard, 3);
  }
  EXPECT_THAT(gaps,
              ElementsAre(absl::Milliseconds(50), absl::Milliseconds(100),
                          absl::Milliseconds(200), absl::Milliseconds(300),
                          absl::Milliseconds(300)));
}

TEST_F(FeedLinkTest, AProbeHasANumberAndNoEntries) {
  Send(3);
  const Message probe = link_.Probe(FeedOf(3), now_);
  EXPECT_EQ(probe.header.hand_over().shard(), 3);
  EXPECT_EQ(probe.header.hand_over().feed().follower(), 7u);
  EXPECT_EQ(probe.header.hand_over().number(), 2u);
  EXPECT_EQ(probe.header.hand_over().record_size(), 0);
  Reply(3, 2);
  EXPECT_EQ(link_.NextWakeup(), absl::InfiniteFuture());
}

// A link with a queue of 200 ms answers later than 50 ms, and nothing is late.
TEST_F(FeedLinkTest, WhatIsLateIsMeasured) {
  for (int i = 0; i < 10; ++i) {
    const uint64_t number = Send(0);
    now_ += absl::Milliseconds(200);
    Reply(0, number);
  }
  EXPECT_EQ(link_.round_trip().smoothed(), absl::Milliseconds(200));
  const absl::Time sent = now_;
  Send(0);
  EXPECT_GT(link_.NextWakeup(), sent + absl::Milliseconds(200));
}

// The receiver reads in order, and stands still now and then. Many feeds.
TEST(FeedLinkHistories, UnreadBytesStayBelowTheBoundAndEverybodyHasTurns) {
  constexpr int kFeeds = 30;
  constexpr size_t kWindow = 1000;
  constexpr size_t kLargest = 300;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    FeedLink link({.window_bytes = kWindow, .messages_max = 20});
    absl::Time now = absl::UnixEpoch();
    struct OnItsWay {
      int32_t shard;
      uint64_t number;
      size_t bytes;
    };
    std::deque<OnItsWay> unread;
    std::vector<int64_t> sent(kFeeds, 0);
    std::vector<size_t> next(kFeeds);
    for (size_t& bytes : next)
      bytes = static_cast<size_t>(rng.Between(1, kLargest));
    const auto pump = [&](int shard) {
      const auto at = static_cast<size_t>(shard);
      if (!link.HasRoom(next[at])) return link.Wait(ShardId{shard});
      unread.push_back(
          {shard, link.OnSend(FeedOf(shard), next[at], now), next[at]});
      ++sent[at];
      next[at] = static_cast<size_t>(rng.Between(1, kLargest));
    };
    for (int step = 0; step < 20000; ++step) {
      now += absl::Microseconds(rng.Between(0, 1000));
      // Some have far more to send than others.
      pump(
          static_cast<int>(rng.Chance(0.9) ? rng.Below(3) : rng.Below(kFeeds)));
      size_t bytes = 0;
      for (const OnItsWay& message : unread) bytes += message.bytes;
      ASSERT_LE(bytes, kWindow + 100 * 40) << "probes included";
      ASSERT_EQ(bytes, link.bytes_under_way());
      if (const auto late = link.OnTick(now); late && unread.size() < 40) {
        const uint64_t number =
            link.Probe(*late, now).header.hand_over().number();
        unread.push_back({late->shard, number, link.bytes_under_way() - bytes});
      }
      if (step % 200 < 100) continue;  // It stands still.
      for (int i = 0; i < 2 && !unread.empty(); ++i) {
        EXPECT_THAT(
            link.OnReply(ReplyOf(unread.front().shard, unread.front().number),
                         now),
            IsEmpty());
        unread.pop_front();
      }
      for (const ShardId shard : link.TakeWaiting())
        pump(static_cast<int>(shard));
    }
    EXPECT_GT(*std::ranges::min_element(sent), 30);
  }
}

}  // namespace slackline::feed_link_test
