#include "server/shard/view_changes.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/feed_sender.h"
#include "server/shard/hand_overs.h"
#include "server/shard/request_desk.h"
#include "server/shard/shard_calls.h"
#include "server/shard/shard_maker.h"
#include "server/shard/shard_peers.h"
#include "server/shard/thread_cut.h"

namespace slackline {
namespace {

// The shards that are here from the start.
void CreateShards(const ShardParts& at) {
  for (int i = 0; i < at.view->shard_count(); ++i) {
    const ShardId id{i};
    const bool owned = at.view->OwnerOf(id) == at.options.self;
    // Who follows a shard from the start has it as its owner has it.
    const wire::Follower* const listed = owned ? nullptr : at.ListedHere(id);
    if (!owned && (listed == nullptr || !listed->in_sync())) continue;
    absl::StatusOr<ShardMachine> machine =
        at.maker.NewMachine(at.view->shard(id), at);
    if (!machine.ok()) {
      at.Fail("begin with", id, machine.status());
      return;
    }
    if (listed != nullptr) {
      wire::Feed feed;
      feed.set_follower(listed->since());
      at.places.Follow(
          id, LogCopy(PeerOf(at.view->OwnerOf(id)), feed,
                      at.MostOf(at.view->shard(id)), *std::move(machine)));
      continue;
    }
    // Gradients that wait in a checkpoint were counted in another job.
    at.counts.Inherited(machine->waiting_count());
    at.places.Begin(at.maker.BeginToServe(*std::move(machine),
                                          TermOf(at.view->number()), {}, at));
  }
}

// The log of this copy has another owner now: nobody will tell the copy any
// more where the view has split the shard. Makes the copies of the parts that
// this thread has to have.
void SplitCopy(ShardId shard, const ShardParts& at) {
  const ShardMachine* const copy = at.places.WholeCopy(shard);
  if (copy == nullptr) return;
  std::map<ShardId, ShardMachine> parts;
  parts.emplace(shard, *copy);
  const int32_t first = at.view->shard_count() - at.view->proto().split_size();
  for (int i = 0; i < at.view->proto().split_size(); ++i) {
    const wire::Split& split = at.view->proto().split(i);
    const auto whole = parts.find(ShardId{split.shard()});
    if (whole == parts.end() ||
        !whole->second.shard().range().region.CanBeSplit(split.at())) {
      continue;
    }
    const ShardId part{first + i};
    absl::StatusOr<ShardOutcome> outcome =
        whole->second.Apply(SplitRecord{.at = split.at(), .part = part});
    if (!outcome.ok()) {
      at.Fail("split the copy of", whole->first, outcome.status());
      return;
    }
    parts.emplace(part, *std::move(outcome->part));
  }
  parts.erase(shard);
  for (auto& [part, machine] : parts) {
    const wire::Follower* const listed = at.ListedHere(part);
    if (listed == nullptr && at.view->OwnerOf(part) != at.options.self)
      continue;
    if (at.places.Has(part)) {
      // The part's own feed may have begun, and have brought nothing whole yet.
      const LogCopy* const begun = at.places.Copy(part);
      if (begun == nullptr || begun->machine() != nullptr) continue;
      at.places.Unfollow(part);
    }
    wire::Feed feed;
    if (listed != nullptr) feed.set_follower(listed->since());
    at.places.Follow(
        part, LogCopy(PeerOf(at.view->OwnerOf(part)), feed,
                      at.MostOf(at.view->shard(part)), std::move(machine)));
  }
}

// Does the view's `number`-th split, if the shard is served here and it is not
// done.
void SplitShard(int number, const ShardParts& at) {
  const wire::Split& split = at.view->proto().split(number);
  const ShardId kept{split.shard()};
  // Whoever follows it is told by its log.
  if (!at.places.Has(kept) || at.places.Follows(kept)) return;
  // Done before, here or by an owner before: it may be moving since then.
  ServedShard* const served = at.places.Served(kept);
  if (served != nullptr && !served->range().region.CanBeSplit(split.at()))
    return;
  if (at.places.moving().count(kept) > 0) {
    // Lost to a server that died, which the coordinator has yet to hear. Then
    // the job ends.
    const ShardPlaces::Gone* const gone = at.places.FindGone(kept);
    SL_CHECK(gone != nullptr && gone->lost, "a shard on its way is split");
    return;
  }
  // Who asked for the whole has to ask for the parts.
  at.desk.TurnAway(kept, served->TakeParked(), at);
  // Later splits of the same view may split either part again.
  const ShardId part{at.view->shard_count() - at.view->proto().split_size() +
                     number};
  std::optional<ShardMachine> machine;
  CallShard(kept, at, [&](ServedShard& shard, const ServedShard::Call& call) {
    machine = shard.SplitAt(split.at(), part, call);
  });
  if (!machine.has_value()) return;
  if (at.view->OwnerOf(part) != at.options.self || at.places.Has(part)) return;
  // The followers' copies of it are made by the same record.
  const uint64_t term = served->machine().position().term;
  at.places.Begin(
      at.maker.BeginToServe(*std::move(machine), term,
                            at.places.Feeds(kept)->followers().Awaited(), at));
}

void SplitShards(const View& before, const ShardParts& at) {
  for (int i = before.proto().split_size(); i < at.view->proto().split_size();
       ++i) {
    if (at.failed) return;
    SplitShard(i, at);
  }
}

// The view says that this thread owns the shard, of which it has a copy.
void TakeOver(ShardId shard, const ShardParts& at) {
  LogCopy& copy = *at.places.Copy(shard);
  if (copy.machine() == nullptr) {
    at.Fail("take over", shard,
            absl::DataLossError("the copy of it is not whole"));
    return;
  }
  ShardPlaces::Requests waited;  // For a copy nothing waits.
  const ServedShard& served = at.places.Own(
      at.maker.BeginToServe(copy.Take(), TermOf(at.view->number()), {}, at),
      &waited);
  // The owner before is counted without them.
  at.counts.Inherited(served.machine().waiting_count());
  // Also those that its owner has not come to.
  const int32_t first = at.view->shard_count() - at.view->proto().split_size();
  std::set<ShardId> parts = {shard};
  for (int i = 0; i < at.view->proto().split_size(); ++i) {
    if (parts.count(ShardId{at.view->proto().split(i).shard()}) == 0) continue;
    SplitShard(i, at);
    if (at.places.Owns(ShardId{first + i})) parts.insert(ShardId{first + i});
  }
  for (const ShardId part : parts) RemoveStrangers(part, at);
}

// The view says that somebody else owns the shard, and no move explains that:
// that one has what we have told anybody.
void Depose(ShardId shard, const ShardParts& at) {
  at.desk.DropAbout(shard);
  at.desk.Close(
      shard, "it has another owner",
      [&](ShardPlaces::Left* left) { at.places.Depose(shard, left); }, at);
}

// What the view says of owners that is not about moves.
void FollowOwners(const View& before, const ShardParts& at) {
  std::vector<int32_t> changed = at.view->OwnersThatDiffer(before);
  for (const int32_t id : changed) SplitCopy(ShardId{id}, at);
  // All shards that were split off since are new to this thread.
  for (int32_t id = before.shard_count(); id < at.view->shard_count(); ++id)
    changed.push_back(id);
  for (const int32_t id : changed) {
    if (at.failed) return;
    const ShardId shard{id};
    if (at.view->OwnerOf(shard) == at.options.self) {
      if (at.places.Follows(shard)) TakeOver(shard, at);
    } else if (at.places.Owns(shard)) {
      Depose(shard, at);
    }
  }
}

void FollowFollowers(const View& before, const ShardParts& at) {
  for (const int32_t id : at.view->FollowersThatDiffer(before)) {
    const ShardId shard{id};
    if (const ServedShard* const served = at.places.Served(shard)) {
      // Who was the owner before us is a follower in no view yet.
      const wire::Move* const move = at.view->FindMove(shard);
      at.places.ChangeFollowers(shard).Follow(
          at.view->FollowersOf(shard), at.options.self,
          move == nullptr ? 0 : move->id(), served->machine(), at.now);
      at.desk.OnConfirmed();  // Who was awaited may be gone.
      continue;
    }
    if (!at.places.IsFollowing(shard)) continue;
    const wire::Follower* const listed = at.ListedHere(shard);
    if (listed == nullptr ||
        listed->since() != at.places.Copy(shard)->feed().follower()) {
      SplitCopy(shard, at);  // Some of its parts may be followed further.
      at.places.Unfollow(shard);
    }
  }
}

// Whoever is in the view before and not in this one takes part nowhere any
// more.
void RemoveGone(const View& before, const ShardParts& at) {
  if (at.view->WorkersSince() <= before.number()) return;
  std::vector<WorkerLife> gone;
  for (const wire::WorkerMember& worker : before.workers()) {
    const WorkerLife who{Rank{worker.rank()}, worker.incarnation()};
    if (at.view->FindWorker(who.rank, who.incarnation) == nullptr)
      gone.push_back(who);
  }
  if (gone.empty()) return;
  for (ServedShard* const served : at.places.AllServed()) {
    LeaveRecord leave;
    for (const WorkerLife& who : gone) {
      if (served->Find(who) != nullptr)
        leave.incarnations.push_back(who.incarnation);
    }
    CallShard(served->range().shard, at,
              [&](ServedShard& shard, const ServedShard::Call& call) {
                shard.Leave(std::move(leave), call);
              });
  }
}

// Ends the moves that the view no longer lists. Returns who waited for them.
ShardPlaces::Requests EndMoves(const ShardParts& at) {
  ShardPlaces::Requests waiting;
  const std::set<ShardId> moving = at.places.moving();
  for (const ShardId shard : moving) {
    const wire::Move* const listed = at.view->FindMove(shard);
    if (listed != nullptr && listed->id() == at.places.MoveOf(shard)) continue;
    const ShardPlaces::Gone* const gone = at.places.FindGone(shard);
    const wire::Follower* const follower = at.ListedHere(shard);
    if (gone != nullptr && at.view->OwnerOf(shard) == at.options.self) {
      // Given up, and we were to keep it. It may also be done, and the shard
      // have moved on since, in views that we have not seen.
      if (gone->copy.has_value()) {
        TakeOver(shard, at);
      } else {
        at.places.Lose(shard);
        at.effects.report = true;
      }
    } else if (at.places.FindLeaving(shard) != nullptr) {
      at.places.Stay(shard, &waiting);
    } else if (gone != nullptr && gone->copy.has_value() &&
               follower != nullptr && follower->since() == gone->move) {
      at.places.KeepCopy(shard);
    } else {
      at.places.GiveUp(shard, &waiting);
    }
  }
  return waiting;
}

void BeginMoves(const ShardParts& at) {
  for (const wire::Move& move : at.view->proto().move()) {
    const ShardId shard{move.shard()};
    const Owner target{move.server(), move.thread()};
    if (!at.places.Owns(shard) || at.places.FindLeaving(shard) != nullptr ||
        target == at.options.self) {
      continue;
    }
    at.places.Leave(shard, move.id(), target, at.now);
    if (LogFeed* const feed = at.places.MoveFeed(shard))
      at.feeds.Pump(*feed, at);
    at.hand_overs.GoIfCaughtUp(shard, at);
  }
}

}  // namespace

void ViewChanges::Apply(const View* before, const ShardParts& at) {
  const ShardPlaces::Requests waiting = EndMoves(at);
  if (!std::exchange(created_, true)) {
    CreateShards(at);
  } else {
    for (const auto change :
         {FollowOwners, SplitShards, FollowFollowers, RemoveGone}) {
      if (!at.failed) change(*before, at);
    }
  }
  if (at.failed) return;
  BeginMoves(at);
  // A move may have waited for a follower that this view removes, so each move
  // is looked at again.
  const std::set<ShardId> moving = at.places.moving();
  for (const ShardId shard : moving) at.hand_overs.GoIfCaughtUp(shard, at);
  at.cut.Begin(at);  // Before anybody who knows of it.
  at.desk.Handle(waiting, at);
}

}  // namespace slackline
