#include "tests/sim/feed_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace slackline::sim {
namespace {

bool IsThread(const PeerId& peer) {
  return peer.kind == PeerId::Kind::kShardThread;
}

}  // namespace

FeedWatch::FeedWatch(const Scenario& scenario, Report again, Report unread)
    : budget_(scenario.placement.feed.link),
      keeps_order_(scenario.network.reorder == 0 &&
                   scenario.network.duplicate == 0),
      again_(std::move(again)),
      unread_(std::move(unread)) {}

void FeedWatch::OnSent(const PeerId& from, const PeerId& to,
                       const Message& message) {
  if (!IsThread(from) || !IsThread(to)) return;
  if (message.header.has_hand_over_reply()) {
    const wire::HandOverReply& reply = message.header.hand_over_reply();
    if (reply.number() == 0) return;  // Forged, by a planted fault.
    const Feed feed{to, from, reply.shard(), reply.feed().SerializeAsString()};
    if (reply.declined()) {
      declined_.insert(feed);
    } else {
      has_[feed] = std::max(has_[feed], reply.have());
    }
    return;
  }
  if (!message.header.has_hand_over()) return;
  // Of entries alone: probes go in any case, and so does the last entry of a
  // move.
  const wire::HandOver& hand_over = message.header.hand_over();
  if (hand_over.record_size() == 0 || hand_over.record(0).has_go()) return;
  size_t bytes = 0;
  for (const wire::HandOverRecord& entry : hand_over.record())
    bytes += entry.ByteSizeLong();
  for (const Payload& payload : message.payloads) bytes += payload.size();
  UnderWay& under_way = under_way_[{from, to}];
  const uint64_t number = hand_over.number();
  // Numbers grow: this is to another life of the thread, or from one.
  if (!under_way.bytes.empty() && number <= under_way.bytes.rbegin()->first)
    under_way = {};
  under_way.bytes.emplace(number, bytes);
  under_way.sum += bytes;
  under_way.largest = std::max(under_way.largest, bytes);
  const size_t bound = std::max(budget_.window_bytes, under_way.largest);
  if (under_way.sum <= bound &&
      under_way.bytes.size() <= static_cast<size_t>(budget_.messages_max)) {
    return;
  }
  unread_(absl::StrCat(under_way.sum, " bytes are under way from ",
                       from.ToString(), " to ", to.ToString(), " in ",
                       under_way.bytes.size(), " messages; the budget is ",
                       budget_.window_bytes, " bytes in ",
                       budget_.messages_max));
}

void FeedWatch::OnRead(const PeerId& self, const PeerId& from,
                       const Message& message) {
  if (!IsThread(from) || !message.header.has_hand_over()) return;
  const wire::HandOver& hand_over = message.header.hand_over();
  UnderWay& under_way = under_way_[{from, self}];
  // What left before it has been read, or is lost.
  const auto end = under_way.bytes.upper_bound(hand_over.number());
  for (auto sent = under_way.bytes.begin(); sent != end; ++sent)
    under_way.sum -= sent->second;
  under_way.bytes.erase(under_way.bytes.begin(), end);
  if (hand_over.record_size() == 0) return;
  const Feed feed{from, self, hand_over.shard(),
                  hand_over.feed().SerializeAsString()};
  const auto has = has_.find(feed);
  if (!keeps_order_ || has == has_.end() || declined_.count(feed) > 0 ||
      hand_over.position() > has->second) {
    return;
  }
  again_(absl::StrCat(self.ToString(), " got entry ", hand_over.position(),
                      " of shard ", hand_over.shard(), " from ",
                      from.ToString(), ", and had those up to ", has->second));
}

void FeedWatch::OnGone(const PeerId& thread) {
  std::erase_if(under_way_, [&](const auto& entry) {
    return entry.first.first == thread || entry.first.second == thread;
  });
  std::erase_if(has_, [&](const auto& entry) {
    return std::get<0>(entry.first) == thread ||
           std::get<1>(entry.first) == thread;
  });
}

}  // namespace slackline::sim
