#include "server/shard/feed_sender.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "server/shard/shard_peers.h"

namespace slackline {

FeedLink& FeedSender::LinkTo(Owner target, const ShardParts& at) {
  const auto known = links_.find(target);
  if (known != links_.end()) return known->second.link;
  const wire::ServerMember* const server = at.view->FindServer(target.server);
  return links_
      .emplace(
          target,
          LinkToThread{.server = server == nullptr ? 0 : server->incarnation(),
                       .link = FeedLink(at.options.feed.link)})
      .first->second.link;
}

const FeedLink* FeedSender::FindLink(Owner target) const {
  return const_cast<FeedSender*>(this)->FindLink(target);
}

FeedLink* FeedSender::FindLink(Owner target) {
  const auto known = links_.find(target);
  return known == links_.end() ? nullptr : &known->second.link;
}

void FeedSender::OnView(const ShardParts& at) {
  std::erase_if(links_, [&](const auto& entry) {
    const wire::ServerMember* const server =
        at.view->FindServer(entry.first.server);
    return server == nullptr || server->incarnation() != entry.second.server;
  });
}

void FeedSender::OnTick(const ShardParts& at) {
  for (const ShardId shard : at.places.moving()) {
    LogFeed* const feed = at.places.MoveFeed(shard);
    if (feed != nullptr && feed->NextWakeup() <= at.now) Pump(*feed, at);
  }
  for (auto& [target, to] : links_) {
    if (const std::optional<FeedLink::Feed> feed = to.link.OnTick(at.now))
      Send(target, to.link.Probe(*feed, at.now), at);
  }
  if (at.now < due_) return;
  // It is never too late: what was confirmed since then is looked at for
  // nothing.
  due_ = at.places.WakeFollowers(at.now);
  PumpAll(at);
}

void FeedSender::Send(Owner target, Message message, const ShardParts& at) {
  at.Sign(&message.header);
  at.effects.sends.push_back(
      {.to = PeerOf(target), .message = std::move(message)});
}

void FeedSender::Pump(LogFeed& feed, const ShardParts& at) {
  std::vector<Message> messages;
  feed.Pump(LinkTo(feed.target(), at), at.now, &messages);
  for (Message& message : messages) Send(feed.target(), std::move(message), at);
}

void FeedSender::PumpFollowersOf(ShardId shard, const ShardParts& at) {
  const ShardFeeds* const feeds = at.places.Feeds(shard);
  if (feeds == nullptr) return;
  at.counts.Count(
      run::ServerStats::kBytesToFollowersResentFieldNumber,
      at.places.PumpFollowers(
          shard, at.now,
          [&](Owner target) -> FeedLink& { return LinkTo(target, at); },
          [&](Owner target, Message message) {
            at.counts.Count(run::ServerStats::kBytesToFollowersFieldNumber,
                            PayloadBytes(message));
            Send(target, std::move(message), at);
          }));
  if (!feeds->followers().AllConfirmed())
    due_ = std::min(due_, feeds->followers().NextWakeup());
}

void FeedSender::PumpAll(const ShardParts& at) {
  for (auto& [target, to] : links_) {
    for (const ShardId shard : to.link.TakeWaiting()) {
      if (LogFeed* const feed = at.places.MoveFeed(shard)) Pump(*feed, at);
      PumpFollowersOf(shard, at);
    }
  }
  for (const ShardId shard : at.places.TakeToPump()) PumpFollowersOf(shard, at);
}

absl::Time FeedSender::NextWakeup(const ShardPlaces& places) const {
  absl::Time next = due_;
  for (const ShardId shard : places.moving()) {
    const LogFeed* const feed = places.MoveFeed(shard);
    if (feed != nullptr) next = std::min(next, feed->NextWakeup());
  }
  for (const auto& [target, to] : links_)
    next = std::min(next, to.link.NextWakeup());
  return next;
}

}  // namespace slackline
