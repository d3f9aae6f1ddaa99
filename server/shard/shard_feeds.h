// ShardFeeds: where the log of a shard goes from the thread that owns it: to
// the shard's followers, and to the thread that the shard moves to. A move to a
// follower needs no feed of its own: the two change places.
//
// Deterministic state machine without I/O. Thread-compatible; the shard thread
// is its only caller.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "server/shard/follower_feeds.h"
#include "server/shard/log_feed.h"
#include "server/shard/shard_machine.h"

namespace slackline {

class ShardFeeds {
 public:
  // The shard is as it was before the owner's term began. `awaited` is as that
  // of FollowerFeeds.
  ShardFeeds(const LogFeedOptions& options, const ShardMachine& shard,
             uint64_t term, std::vector<FollowerFeeds::Known> awaited)
      : options_(options),
        followers_(options, shard.shard().range().shard, shard.position(), term,
                   std::move(awaited)) {}

  FollowerFeeds& followers() { return followers_; }
  const FollowerFeeds& followers() const { return followers_; }
  // nullptr if there is no move, or it is one to a follower.
  LogFeed* move_feed() {
    return move_feed_.has_value() ? &*move_feed_ : nullptr;
  }
  const LogFeed* move_feed() const {
    return move_feed_.has_value() ? &*move_feed_ : nullptr;
  }
  // The feed to this thread, of any kind; nullptr if there is none.
  const LogFeed* FeedTo(Owner target) const;

  // Every feed takes the record: FollowerFeeds::OnRecord().
  void OnRecord(const ShardRecord& record, const ShardOutcome& outcome,
                const ShardMachine& shard, absl::Time now);

  // ---- A move to another thread.
  void BeginMove(Owner target, uint64_t move, const ShardMachine& shard,
                 absl::Time now);
  void EndMove() { move_feed_.reset(); }  // The move is given up.
  // Requests have to wait, so that the target can catch up.
  bool MustWait(Owner target, absl::Time now) const;
  // The target, and whoever is awaited, has all that there is of the log: the
  // shard can go.
  bool CanGo(Owner target) const;
  // The shard goes to the target. The feed that says so becomes the caller's.
  LogFeed Go(Owner target, uint64_t move, absl::Time now);

 private:
  LogFeedOptions options_;
  FollowerFeeds followers_;
  std::optional<LogFeed> move_feed_;
};

}  // namespace slackline
