#include "server/shard/hand_overs.h"

#include <optional>
#include <utility>
#include <vector>

#include "server/shard/feed_sender.h"
#include "server/shard/request_desk.h"
#include "server/shard/shard_calls.h"
#include "server/shard/shard_maker.h"
#include "server/shard/shard_peers.h"

namespace slackline {
namespace {

// The followers that the new owner has to await.
std::vector<FollowerFeeds::Known> AwaitedOf(const wire::Go& go) {
  std::vector<FollowerFeeds::Known> awaited;
  for (const wire::Go::InSync& follower : go.in_sync())
    awaited.push_back({.server = follower.server(), .since = follower.since()});
  return awaited;
}

// Confirms what has been taken of the feed of the message. `copy` is the copy
// of the shard; nullptr if this thread owns the shard by now.
void Confirm(const PeerId& to, const wire::HandOver& hand_over,
             const LogCopy* copy, bool owned, const ShardParts& at) {
  Outgoing out{.to = to, .message = {}};
  at.Sign(&out.message.header);
  wire::HandOverReply& reply = *out.message.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  *reply.mutable_feed() = hand_over.feed();
  reply.set_number(hand_over.number());
  reply.set_owned(owned);
  if (copy != nullptr) {
    reply.set_have(copy->have());
    reply.set_lacks(copy->lacks());
  }
  at.effects.sends.push_back(std::move(out));
}

// Says that this thread can do nothing with the message.
void Decline(const PeerId& to, const Message& message, const ShardParts& at) {
  const wire::HandOver& hand_over = message.header.hand_over();
  Outgoing out{.to = to, .message = {}};
  out.message.header.set_run(message.header.run());  // If we know of none.
  at.Sign(&out.message.header);
  wire::HandOverReply& reply = *out.message.header.mutable_hand_over_reply();
  reply.set_shard(hand_over.shard());
  *reply.mutable_feed() = hand_over.feed();
  reply.set_number(hand_over.number());
  reply.set_declined(true);
  at.effects.sends.push_back(std::move(out));
}

// The copy takes what the message has for it. False: it could not.
bool Take(LogCopy* copy, const PeerId& from, const Message& message,
          const ShardParts& at) {
  const wire::HandOver& hand_over = message.header.hand_over();
  const absl::Status taken = copy->OnHandOver(hand_over, message.payloads);
  if (taken.ok()) return true;
  if (absl::IsInvalidArgument(taken)) {
    at.counts.Count(run::ServerStats::kMalformedFieldNumber);
    Decline(from, message, at);
  } else {
    at.Fail("copy", ShardId{hand_over.shard()}, taken);
  }
  return false;
}

// The feed of the shard to that thread; nullptr if there is none.
const LogFeed* FeedTo(const ShardPlaces& places, ShardId shard, Owner target) {
  if (const ShardFeeds* const feeds = places.Feeds(shard))
    return feeds->FeedTo(target);
  const LogFeed* const feed = places.MoveFeed(shard);
  return feed != nullptr && feed->target() == target ? feed : nullptr;
}

// The copy has taken what the message has for it. If that was the go, this
// thread owns the shard from here on.
void OnTaken(LogCopy& copy, const PeerId& from, const wire::HandOver& hand_over,
             const ShardParts& at) {
  const ShardId shard{hand_over.shard()};
  const bool owned = copy.go().has_value();
  Confirm(from, hand_over, &copy, owned, at);
  if (!owned) return;
  const wire::Go go = *copy.go();
  const bool swap = !copy.feed().has_move();
  ShardPlaces::Requests waited;
  const ServedShard& served = at.places.Own(
      at.maker.BeginToServe(copy.Take(), TermOf(at.view->number()) + 1,
                            AwaitedOf(go), at),
      &waited);
  if (swap) {
    at.places.ChangeFollowers(shard).Add(OwnerOf(from), go.move(),
                                         served.machine(), at.now);
  }
  // The view here is at least as new as that of the source: see `early_`.
  RemoveStrangers(shard, at);
  at.desk.Handle(waited, at);
}

}  // namespace

void HandOvers::OnHandOver(const PeerId& from, const Message& message,
                           const ShardParts& at) {
  const wire::HandOver& hand_over = message.header.hand_over();
  if (at.view == nullptr || at.view->proto().state() != wire::RUNNING)
    return Decline(from, message, at);
  if (message.header.view_number() > at.view->number()) {
    // The source has the order, and ours is on its way.
    size_t bytes = PayloadBytes(message);
    for (const Outgoing& early : early_) bytes += PayloadBytes(early.message);
    if (early_.size() >= at.options.early_max ||
        bytes > at.options.early_bytes_max)
      return Decline(from, message, at);
    early_.push_back({.to = from, .message = message});
    return;
  }
  if (!at.view->HasShard(hand_over.shard())) return Decline(from, message, at);
  if (hand_over.feed().has_move()) {
    OnMove(from, message, at);
  } else {
    OnFeed(from, message, at);
  }
}

void HandOvers::OnMove(const PeerId& from, const Message& message,
                       const ShardParts& at) {
  const wire::HandOver& hand_over = message.header.hand_over();
  const ShardId shard{hand_over.shard()};
  // Without the order we do not take part; the source asks again.
  const wire::Move* const move = at.view->FindMove(shard);
  if (move == nullptr || move->id() != hand_over.feed().move() ||
      Owner{move->server(), move->thread()} != at.options.self) {
    return Decline(from, message, at);
  }
  if (at.places.Owns(shard))  // Our confirmation was lost.
    return Confirm(from, hand_over, nullptr, /*owned=*/true, at);
  const ShardRange& range = at.view->shard(shard);
  if (!at.places.Has(shard)) {
    at.places.Arrive(shard, LogCopy(from, hand_over.feed(), range, range.region,
                                    at.maker.RuleFor(range)));
  }
  LogCopy* const arriving = at.places.Arriving(shard);
  if (arriving == nullptr)  // Gone, and lost.
    return Decline(from, message, at);
  if (!Take(arriving, from, message, at)) return;
  OnTaken(*arriving, from, hand_over, at);
}

void HandOvers::OnFeed(const PeerId& from, const Message& message,
                       const ShardParts& at) {
  const wire::HandOver& hand_over = message.header.hand_over();
  const wire::Feed& feed = hand_over.feed();
  const ShardId shard{hand_over.shard()};
  const wire::Follower* const listed = at.ListedHere(shard);
  if (at.places.Owns(shard)) {
    // Our confirmation of the go was lost.
    const wire::Move* const move = at.view->FindMove(shard);
    if (move != nullptr && OwnerOf(from) == at.view->OwnerOf(shard) &&
        Owner{move->server(), move->thread()} == at.options.self) {
      return Confirm(from, hand_over, nullptr, /*owned=*/true, at);
    }
    return Decline(from, message, at);
  }
  const ShardPlaces::Gone* const gone = at.places.FindGone(shard);
  const bool is_listed =
      (listed != nullptr && listed->since() == feed.follower()) ||
      (gone != nullptr && gone->move == feed.follower());
  if (!is_listed) return Decline(from, message, at);
  // What an owner sends that was replaced is taken by nobody any more.
  const wire::Move* const move = at.view->FindMove(shard);
  const bool from_owner =
      OwnerOf(from) == at.view->OwnerOf(shard) ||
      (move != nullptr &&
       OwnerOf(from) == Owner{move->server(), move->thread()});
  if (!from_owner) return Decline(from, message, at);
  if (!at.places.Has(shard)) {
    const ShardRange& range = at.view->shard(shard);
    // Before our copy of what it was split off from has heard of that, it has
    // this one, too; and splitting it makes a copy of this one.
    for (ShardId part = shard; at.view->OriginOf(part) != part;) {
      part = at.view->OriginOf(part);
      const ShardMachine* const whole = at.places.WholeCopy(part);
      if (whole != nullptr &&
          whole->shard().range().region.Overlaps(range.region)) {
        return Decline(from, message, at);  // For now.
      }
    }
    at.places.Follow(shard, LogCopy(from, feed, range, at.MostOf(range),
                                    at.maker.RuleFor(range)));
  }
  LogCopy* const copy = at.places.Copy(shard);
  if (copy == nullptr || IsNewer(copy->feed(), feed))
    return Decline(from, message, at);
  if (IsNewer(feed, copy->feed())) copy->Follow(from, feed);
  if (copy->source() != from) return Decline(from, message, at);
  if (!Take(copy, from, message, at)) return;
  if (const size_t bytes = copy->TakeBytesApplied(); bytes > 0)
    at.effects.work.push_back({.shard = shard, .bytes_applied = bytes});
  for (ShardMachine& part : copy->TakeParts()) {
    const ShardRange range = part.shard().range();
    // Others may have come to follow the part before we heard of it.
    const wire::Follower* const of_part = at.ListedHere(range.shard);
    if (of_part == nullptr || of_part->since() != feed.follower() ||
        at.places.Has(range.shard)) {
      continue;
    }
    at.places.Follow(range.shard,
                     LogCopy(from, feed, at.MostOf(range), std::move(part)));
  }
  OnTaken(*copy, from, hand_over, at);
}

void HandOvers::OnHandOverReply(const PeerId& from, const Message& message,
                                const ShardParts& at) {
  const wire::HandOverReply& reply = message.header.hand_over_reply();
  const Owner target = OwnerOf(from);
  FeedLink* const link = at.feeds.FindLink(target);
  if (link == nullptr) return;  // The reply is to a life before this one.
  const std::vector<FeedLink::Feed> passed_over = link->OnReply(reply, at.now);
  for (const FeedLink::Feed& feed : passed_over) {
    const ShardId shard{feed.shard};
    const LogFeed* const log = FeedTo(at.places, shard, target);
    if (log != nullptr && log->IsInDoubt(feed.feed, reply.number()))
      at.feeds.Send(target, link->Probe(feed, at.now), at);
  }
  const ShardId shard{reply.shard()};
  LogFeed* const feed = at.places.MoveFeed(shard);
  const ServedShard* const served = at.places.Served(shard);
  if (feed != nullptr && feed->target() == target) {
    const bool known = feed->owned_by_target();
    feed->OnReply(reply, served == nullptr ? nullptr : &served->machine(),
                  at.now);
    if (feed->owned_by_target() && !known) at.effects.report = true;
    at.feeds.Pump(*feed, at);
  }
  if (served == nullptr) return;
  if (at.places.Feeds(shard)->followers().FeedTo(target) != nullptr) {
    at.effects.report |= at.places.ChangeFollowers(shard).OnReply(
        target, reply, served->machine(), at.now);
    at.desk.OnConfirmed();
  }
  GoIfCaughtUp(shard, at);
}

void HandOvers::GoIfCaughtUp(ShardId shard, const ShardParts& at) {
  const ShardPlaces::Leaving* const leaving = at.places.FindLeaving(shard);
  if (leaving == nullptr || !leaving->served.feeds.CanGo(leaving->target))
    return;
  // What we have told anybody they have, and nobody is told more.
  at.desk.OnConfirmed();
  at.desk.Flush(at);
  at.desk.Close(
      shard, "it has moved to another thread",
      [&](ShardPlaces::Left* left) {
        const Region most = at.MostOf(at.view->shard(shard));
        at.feeds.Pump(at.places.Go(shard, most, at.now, left), at);
      },
      at);
}

void HandOvers::HandleEarly(const ShardParts& at) {
  for (const Outgoing& early : std::exchange(early_, {})) {
    if (at.failed) return;
    OnHandOver(early.to, early.message, at);
  }
}

}  // namespace slackline
