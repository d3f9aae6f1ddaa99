#include "server/shard/feed_link.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace slackline {
namespace {

// About the bytes of a message without entries.
constexpr size_t kProbeBytes = 96;

bool IsSame(const FeedLink::Feed& a, const FeedLink::Feed& b) {
  return a.shard == b.shard && a.feed.to_case() == b.feed.to_case() &&
         a.feed.move() == b.feed.move() &&
         a.feed.follower() == b.feed.follower() &&
         a.feed.term() == b.feed.term();
}

}  // namespace

uint64_t FeedLink::OnSend(const Feed& feed, size_t bytes, absl::Time now) {
  if (under_way_.empty()) probe_at_ = now + round_trip_.Timeout(unanswered_);
  under_way_.push_back(
      {.number = ++last_number_, .feed = feed, .bytes = bytes, .at = now});
  bytes_under_way_ += bytes;
  return last_number_;
}

Message FeedLink::Probe(const Feed& feed, absl::Time now) {
  Message probe;
  wire::HandOver& hand_over = *probe.header.mutable_hand_over();
  hand_over.set_shard(feed.shard);
  *hand_over.mutable_feed() = feed.feed;
  hand_over.set_number(OnSend(feed, kProbeBytes, now));
  return probe;
}

std::vector<FeedLink::Feed> FeedLink::OnReply(const wire::HandOverReply& reply,
                                              absl::Time now) {
  std::vector<Feed> in_doubt;
  const uint64_t number = reply.number();
  if (under_way_.empty() || number < under_way_.front().number ||
      number > last_number_ ||
      !IsSame(under_way_[number - under_way_.front().number].feed,
              {.shard = reply.shard(), .feed = reply.feed()}))
    return in_doubt;
  while (!under_way_.empty() && under_way_.front().number <= number) {
    Sent& sent = under_way_.front();
    if (sent.number == number) {
      round_trip_.Add(now - sent.at);
    } else if (absl::c_none_of(in_doubt, [&](const Feed& other) {
                 return IsSame(other, sent.feed);
               })) {
      in_doubt.push_back(std::move(sent.feed));
    }
    bytes_under_way_ -= sent.bytes;
    under_way_.pop_front();
  }
  unanswered_ = 0;
  probe_at_ =
      under_way_.empty() ? absl::InfiniteFuture() : now + round_trip_.Timeout();
  return in_doubt;
}

std::optional<FeedLink::Feed> FeedLink::OnTick(absl::Time now) {
  if (now < probe_at_) return std::nullopt;
  probe_at_ = now + round_trip_.Timeout(++unanswered_);
  return under_way_.front().feed;
}

void FeedLink::Wait(ShardId shard) {
  if (!absl::c_linear_search(waiting_, shard)) waiting_.push_back(shard);
}

std::deque<ShardId> FeedLink::TakeWaiting() {
  if (!under_way_.empty() && !Fits(1)) return {};
  return std::exchange(waiting_, {});
}

}  // namespace slackline
