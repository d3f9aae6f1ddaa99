// FollowerFeeds: the feeds from one shard's owner to those who follow the
// shard, and up to which record of its log the owner may answer.
//
// Whoever is awaited has to confirm a record before anybody is told what it has
// made of the shard: a follower that the view says to be in sync, and one that
// has the shard. That one is in sync when it has the log up to where the owner
// began to wait for it: all that anybody was told before, and whatever anybody
// is told from then on. Only the view makes an owner wait for it no longer.
//
// Gradients that wait for the rest of their clock are gathered, and followers
// are sent their sum when the clock is complete: the bytes of one gradient,
// however many workers there are. They have nothing of that clock until then,
// so the answers to its pushes wait. If something else happens to the shard
// meanwhile, or the rest does not come soon, each gradient is sent. Soon is by
// the round trip to the followers, for which the answers wait in any case:
// where it is long, sending each gradient takes the longest.
//
// Deterministic state machine without I/O. Thread-compatible; the shard thread
// is its only caller.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/message.h"
#include "proto/hand_over.pb.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"
#include "server/shard/log_feed.h"
#include "server/shard/shard_machine.h"

namespace slackline {

class FollowerFeeds {
 public:
  // Names a follower.
  struct Known {
    int32_t server = 0;
    uint64_t since = 0;  // Follower::since of the view.
    bool operator==(const Known&) const = default;
  };

  // The owner begins to serve the shard, which is at `begins_at` and is now of
  // the owner's own `term`. These are awaited as soon as they are followers.
  FollowerFeeds(const LogFeedOptions& options, ShardId shard,
                const LogPosition& begins_at, uint64_t term,
                std::vector<Known> awaited);

  // Begins feeds to followers that are new in a view, and ends those to
  // followers that it does not list. `self` is fed nothing. The feed of the
  // number `keep` goes on without being listed.
  void Follow(absl::Span<const wire::Follower> listed, Owner self,
              uint64_t keep, const ShardMachine& shard, absl::Time now);
  // A follower that no view lists yet: the owner before. It is awaited.
  void Add(Owner follower, uint64_t since, const ShardMachine& shard,
           absl::Time now);

  bool empty() const { return members_.empty(); }
  // The owner has applied this record, with this outcome, which has its sums,
  // and is as `shard` by it.
  void OnRecord(const ShardRecord& record, const ShardOutcome& outcome,
                const ShardMachine& shard, absl::Time now);
  // nullptr if there is none.
  const LogFeed* FeedTo(Owner follower) const;
  // The thread is a follower, and has all that there is of the log.
  bool CaughtUp(Owner follower) const {
    const LogFeed* const feed = FeedTo(follower);
    return gathered_.empty() && feed != nullptr && feed->CaughtUp();
  }
  // A follower has replied; `shard` is as it is now. True if there is news for
  // Report().
  bool OnReply(Owner follower, const wire::HandOverReply& reply,
               const ShardMachine& shard, absl::Time now);
  // Whoever is awaited has the log up to this index.
  bool Have(uint64_t index) const;
  // Whoever is awaited has all that there is of the log.
  bool HaveAll() const { return Have(newest_); }
  // `link_to` is the link to a follower's thread. Returns as LogFeed::Pump().
  size_t Pump(absl::Time now, absl::FunctionRef<FeedLink&(Owner)> link_to,
              absl::FunctionRef<void(Owner, Message)> send);
  absl::Time NextWakeup() const;  // InfiniteFuture if nothing waits.
  // All followers have confirmed all that there is of the log.
  bool AllConfirmed() const;

  // The shard is to move to this follower, if it is one.
  void BeginMove(Owner target, absl::Time now);
  // The go of this move, with all who are awaited but for the target.
  wire::Go GoTo(Owner target, uint64_t move) const;
  // The feed to this follower, which has caught up, becomes the caller's.
  LogFeed Take(Owner follower);
  std::vector<Known> Awaited() const;

  // Reports the followers of which the view does not say that they are in sync.
  void Report(run::ServerStats* stats) const;

 private:
  struct Member {
    LogFeed feed;
    Known who;
    // Where the owner was in the log when it began to wait; nullopt: it does
    // not.
    std::optional<uint64_t> awaited_from;
    bool known = false;     // The view says that it is in sync.
    bool reported = false;  // OnConfirmed() has said that there is news of it.
    bool Has(uint64_t index) const {
      return feed.confirmed().has_value() && *feed.confirmed() >= index;
    }
    bool InSync() const {
      return awaited_from.has_value() && Has(*awaited_from);
    }
  };
  struct Gathered {
    GradientRecord record;
    LogPosition after;
  };
  LogFeed* FindFeed(Owner follower);
  // What was gathered is sent before whatever comes now.
  void Begin(Owner follower, uint64_t since, bool awaited, bool known,
             const ShardMachine& shard, absl::Time now);
  void AddToFeeds(const ShardRecord& record, const LogPosition& after);
  void SendEach();
  void SendSum(const Payload& sum);

  LogFeedOptions options_;
  ShardId shard_;
  LogPosition begins_at_;
  uint64_t term_ = 0;
  uint64_t newest_ = 0;  // The last record that the owner has applied.
  std::vector<Known> awaited_;
  std::vector<Member> members_;  // A few.
  // Held gradients of the clock that is not complete, one after the other in
  // the log, which nobody has been sent.
  std::vector<Gathered> gathered_;
  // What was gathered is sent by then; InfiniteFuture: nothing was.
  absl::Time gather_until_ = absl::InfiniteFuture();
  absl::Duration gather_max_;  // The next gradient of a clock may take so long.
};

}  // namespace slackline
