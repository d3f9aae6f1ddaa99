#include "server/shard/shard_feeds.h"

namespace slackline {

const LogFeed* ShardFeeds::FeedTo(Owner target) const {
  return move_feed_.has_value() && move_feed_->target() == target
             ? &*move_feed_
             : followers_.FeedTo(target);
}

void ShardFeeds::OnRecord(const ShardRecord& record,
                          const ShardOutcome& outcome,
                          const ShardMachine& shard, absl::Time now) {
  if (move_feed_.has_value()) move_feed_->OnRecord(record, shard.position());
  followers_.OnRecord(record, outcome, shard, now);
}

void ShardFeeds::BeginMove(Owner target, uint64_t move,
                           const ShardMachine& shard, absl::Time now) {
  if (followers_.FeedTo(target) != nullptr)
    return followers_.BeginMove(target, now);
  wire::Feed feed;
  feed.set_move(move);
  feed.set_term(shard.position().term);
  move_feed_.emplace(options_, target, feed, shard, now);
}

bool ShardFeeds::MustWait(Owner target, absl::Time now) const {
  if (!move_feed_.has_value())
    return !followers_.CaughtUp(target) || !followers_.HaveAll();
  return move_feed_->MustWait(now) ||
         (move_feed_->CaughtUp() && !followers_.HaveAll());
}

bool ShardFeeds::CanGo(Owner target) const {
  return followers_.HaveAll() &&
         (move_feed_.has_value() ? move_feed_->CaughtUp()
                                 : followers_.CaughtUp(target));
}

LogFeed ShardFeeds::Go(Owner target, uint64_t move, absl::Time now) {
  const wire::Go go = followers_.GoTo(target, move);
  LogFeed feed = move_feed_.has_value() ? *std::exchange(move_feed_, {})
                                        : followers_.Take(target);
  feed.Go(go, now);
  return feed;
}

}  // namespace slackline
