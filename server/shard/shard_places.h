// ShardPlaces: where each shard is in its life on one shard thread, and the
// sets of shards that follow from that. A shard that has no place here is with
// others.
//
// | place | the shard here |
// | --- | --- |
// | arriving | its owner sends it; requests for it wait |
// | serving | this thread owns it |
// | leaving | this thread owns it, and it is to go to another one |
// | gone | the other thread owns it; the view still lists the move |
// | following | this thread has a copy of it, or gets one |
//
// Who leaves to a follower changes places with it, and is gone with a copy.
//
// Only these events change a place; any other pair of place and event is a
// mistake of the caller's, and fatal.
//
// | event | none | arriving | serving | leaving | gone | following |
// | --- | --- | --- | --- | --- | --- | --- |
// | Begin | serving | | | | | |
// | Follow | following | | | | | |
// | Arrive | arriving | | | | | |
// | Own | | serving | | | serving, if it has a copy | serving |
// | Leave | | | leaving | | | |
// | Stay | | | | serving | | |
// | Go | | | | gone | | |
// | Lose | | | | | gone | |
// | KeepCopy | | | | | following, if it has a copy | |
// | GiveUp | | none | | | none | |
// | Unfollow | | | | | | none |
// | Depose | | | none | none | | |
//
// moving() are those that are arriving, leaving or gone. Only what is served
// has followers to be fed: it is to be pumped after what may have given its
// feeds something to send, and unconfirmed from a pump on until one finds that
// the followers have all.
//
// The calls of ServedShard are its caller's.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/node_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "proto/run.pb.h"
#include "server/shard/log_feed.h"
#include "server/shard/served_shard.h"
#include "server/shard/shard_feeds.h"

namespace slackline {

class ShardPlaces {
 public:
  using Requests = std::vector<Outgoing>;  // `to` is who asked.
  // Requests for one shard that wait until it is clear who owns it.
  struct Waiting {
    Requests requests;
    size_t bytes = 0;  // The requests' entries and payload have so many.
  };
  struct Serving {
    ServedShard shard;
    ShardFeeds feeds;
  };
  // A shard that is served, found once for a call of it.
  class Called {
   public:
    ServedShard& shard() const { return served_.shard; }
    const ShardFeeds& feeds() const { return served_.feeds; }

   private:
    friend class ShardPlaces;
    explicit Called(Serving& served) : served_(served) {}
    Serving& served_;
  };
  struct Leaving {
    Serving served;
    uint64_t move = 0;
    Owner target;
    Waiting waiting = {};
  };
  struct Gone {
    LogFeed feed;  // The shard went with it.
    uint64_t move = 0;
    bool lost = false;  // The thread to which it went has died.
    // The shard went to a follower, and this thread follows it from then on.
    std::optional<LogCopy> copy = {};
  };
  // Who has waited at a shard that this thread owns no more.
  struct Left {
    std::vector<GatedPull> parked;  // In parking order.
    Requests requests;
  };

  // ---- Where a shard is. A place stays where it is in memory, and what is in
  // it until the shard's next event. nullptr: it has no such place.
  bool Has(ShardId shard) const { return Find(shard) != nullptr; }
  // The shard is serving or leaving: this thread owns it.
  ServedShard* Served(ShardId shard);
  const ServedShard* Served(ShardId shard) const;
  bool Owns(ShardId shard) const { return Served(shard) != nullptr; }
  const ShardFeeds* Feeds(ShardId shard) const;  // Where its log goes.
  // The shard is following, or gone with a copy.
  LogCopy* Copy(ShardId shard);
  const LogCopy* Copy(ShardId shard) const;
  bool Follows(ShardId shard) const { return Copy(shard) != nullptr; }
  // The copy, if it is whole.
  const ShardMachine* WholeCopy(ShardId shard) const;
  LogCopy* Arriving(ShardId shard);
  const Leaving* FindLeaving(ShardId shard) const;
  const Gone* FindGone(ShardId shard) const;
  bool IsArriving(ShardId shard) const;
  bool IsFollowing(ShardId shard) const;
  // The feed of the move of a shard that is gone, or leaves to no follower.
  LogFeed* MoveFeed(ShardId shard);
  const LogFeed* MoveFeed(ShardId shard) const;
  // What waits for a shard that is arriving or leaving.
  const Waiting* WaitingFor(ShardId shard) const;
  // The number of the move of a shard that is among moving().
  uint64_t MoveOf(ShardId shard) const;

  // All shards that are served, in the order of their ids.
  std::vector<ServedShard*> AllServed();
  std::vector<const ServedShard*> AllServed() const;
  const std::set<ShardId>& moving() const { return moving_; }
  size_t copies_count() const;
  size_t waiting_count() const;
  size_t waiting_bytes() const;
  // What is served, followed and moved here at present.
  void Report(run::ServerStats* stats) const;

  // ---- Events.
  // The shard has been this thread's from the start, or is split off from one
  // that is.
  ServedShard& Begin(Serving shard);
  LogCopy& Follow(ShardId shard, LogCopy copy);
  LogCopy& Arrive(ShardId shard, LogCopy copy);
  // The copy has become this thread's: `shard` was made of it. Appends to
  // `*waited` the requests that have waited for that.
  ServedShard& Own(Serving shard, Requests* waited);
  void Leave(ShardId shard, uint64_t move, Owner target, absl::Time now);
  // The move is given up. Appends to `*waited` the requests that have waited.
  void Stay(ShardId shard, Requests* waited);
  // The target, which has all of the log, owns the shard from here on. A copy
  // that stays here, of one that goes to a follower, can have had `most`.
  // Appends to `*left`. Returns the feed that says so to the target.
  LogFeed& Go(ShardId shard, const Region& most, absl::Time now, Left* left);
  // The move was given up, and the shard had gone.
  void Lose(ShardId shard);
  // The move is done, and the view lists this thread as a follower by it.
  void KeepCopy(ShardId shard);
  // The move is done or given up. Appends to `*waited` the requests that have
  // waited for that.
  void GiveUp(ShardId shard, Requests* waited);
  void Unfollow(ShardId shard);
  // Another thread owns the shard, by no move. Appends to `*left`.
  void Depose(ShardId shard, Left* left);
  // The request waits until it is clear who owns the shard, which is arriving
  // or leaving. Its entries and payload have so many bytes.
  void Wait(ShardId shard, Outgoing request, size_t bytes);

  // ---- Feeds of a shard that is served.
  Called Call(ShardId shard) { return Called(*FindServed(shard)); }
  // The feeds take the record. The shard is to be pumped, if it is followed.
  void OnRecord(const Called& called, const ShardRecord& record,
                const ShardOutcome& outcome, absl::Time now);
  // The feeds, for a change of who follows the shard, or of what they have. The
  // shard is to be pumped.
  FollowerFeeds& ChangeFollowers(ShardId shard);
  // The shards that are to be pumped. They are no more.
  std::set<ShardId> TakeToPump() { return std::exchange(to_pump_, {}); }
  // Sends what there is for followers: FollowerFeeds::Pump().
  size_t PumpFollowers(ShardId shard, absl::Time now,
                       absl::FunctionRef<FeedLink&(Owner)> link_to,
                       absl::FunctionRef<void(Owner, Message)> send);
  // Unconfirmed shards whose feeds have something to do now are to be pumped.
  // Returns when the next one has.
  absl::Time WakeFollowers(absl::Time now);
  // For tests.
  const std::set<ShardId>& unconfirmed() const { return unconfirmed_; }
  // No follower lacks anything.
  bool AllConfirmed() const { return to_pump_.empty() && unconfirmed_.empty(); }

 private:
  struct Arrival {
    LogCopy copy;
    Waiting waiting = {};
  };
  struct Following {
    LogCopy copy;
  };
  using Place = std::variant<Serving, Leaving, Gone, Arrival, Following>;

  template <typename State>
  State* FindAs(ShardId shard);
  template <typename State>
  const State* FindAs(ShardId shard) const;
  Serving* FindServed(ShardId shard);
  Waiting* FindWaiting(ShardId shard);
  Place* Find(ShardId shard);
  const Place* Find(ShardId shard) const;
  // Fatal if the shard has a place.
  Place& Put(ShardId shard, Place place);
  // The place in which the shard was is over. Returns its new one, for what is
  // to be in it.
  Place& Become(ShardId shard, Place place);
  void End(ShardId shard);
  // Makes the sets agree with the shard's place.
  void Classify(ShardId shard);

  // Nothing depends on their order.
  absl::node_hash_map<ShardId, Place> places_;
  std::set<ShardId> moving_;
  std::set<ShardId> to_pump_;
  std::set<ShardId> unconfirmed_;
};

}  // namespace slackline
