// ViewEditor: the only writer of the job's view.
//
// The edits of one event collect here, whoever makes them, and one Commit() at
// the end of the event makes one view of them, whose number is larger by one.
// view() shows edits at once, so that the parts of the coordinator which handle
// an event one after the other see what was done before; its number is that of
// the last commit.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "proto/view.pb.h"

namespace slackline {

class ViewEditor {
 public:
  // `view` as it was committed last. Its members are sorted by index and rank.
  explicit ViewEditor(wire::View view);

  const wire::View& view() const { return view_; }
  bool running() const { return view_.state() == wire::RUNNING; }
  bool ended() const {
    return view_.state() == wire::FINISHED || view_.state() == wire::FAILED;
  }
  // The number of the view that will have the edits which are made now.
  uint64_t next_number() const { return view_.number() + 1; }

  // ---- The job
  void Run(int64_t steps_total, int64_t steps_per_epoch, bool elastic = false);
  // The smallest clock of a founder, of a job that begins to run.
  void SetBeginsAt(Clock clock);
  // All examples of an elastic job are done, or a job is ended early.
  void SetEndClock(Clock clock);
  // FINISHED or FAILED, as the cause is. Without effect once the job has ended.
  void End(wire::JobEnd end);

  // ---- Members. Put: a new one, or a new state of one that is there.
  void PutServer(wire::ServerMember server);
  void PutWorker(wire::WorkerMember worker);
  // With it go the copies that it has, and the moves to it and off it. Each
  // shard that it owns belongs to its follower on another server from now on:
  // `heirs` says which one, by shard, and names each of them. Without heirs,
  // shards that it owns stay its own: the job has to end.
  void RemoveServer(int32_t index,
                    const std::map<int32_t, int32_t>& heirs = {});
  void RemoveWorker(int32_t rank);
  // The workers have to connect anew: the next view begins a group
  // (View.group), if the job runs.
  void Regroup();

  // ---- Placement
  // Numbers the shards of the tables and gives them to these threads
  // (common/view/shard_map.h).
  void PlaceTables(absl::Span<const wire::Table> tables,
                   absl::Span<const Owner> threads, int64_t shard_elements);
  // Splits a shard at an element inside it. The new one has the same owner and
  // the same followers.
  void Split(int32_t shard, int64_t at);
  // Lists a move; the shard has none yet.
  void OrderMove(int32_t shard, Owner to);
  // The listed move is done: its target owns the shard. If that was a follower
  // of the shard, the source is one now instead. nullptr from FindMove() is
  // fatal.
  void FinishMove(int32_t shard);
  // The listed move of the shard, or nullptr. Valid until the next edit.
  const wire::Move* FindMove(int32_t shard) const;
  // False also for a shard that there is not.
  bool Owns(int32_t server, int32_t shard) const {
    return shard >= 0 && shard < view_.owner_server_size() &&
           view_.owner_server(shard) == server;
  }
  bool OwnsShards(int32_t server) const { return owned_.count(server) > 0; }
  bool GetsShards(int32_t server) const;
  // The first view with the owners that there are now, or a later one: who has
  // seen it knows which shards are its own.
  uint64_t owners_since() const { return owners_since_; }

  // ---- Followers (common/view/shard_map.h). The view may have none on the
  // server of the shard's owner, and one on each other server.
  // Sets all that there are.
  void SetFollowers(std::vector<wire::Follower> sorted);
  // Adds a new one, which is not in sync yet.
  void AddFollower(int32_t shard, Owner thread);
  // The follower is there, here and in the two below.
  void SetInSync(int32_t shard, int32_t server);
  void RemoveFollower(int32_t shard, int32_t server);
  // It owns the shard now, and is no follower any more. The owner so far has
  // nothing, and no move of the shard is listed.
  void Promote(int32_t shard, int32_t server);
  // nullptr if there is none. Valid until the next edit.
  const wire::Follower* FindFollower(int32_t shard, int32_t server) const;
  // The shard's on all servers, by their ids. Valid until the next edit.
  absl::Span<const wire::Follower* const> FollowersOf(int32_t shard) const;
  bool FollowsShards(int32_t server) const {
    return followed_.count(server) > 0;
  }

  // ---- Modes
  // The phases of the job's start.
  void SetPhases(const std::vector<wire::Phase>& phases);
  void AddPhase(const wire::Phase& phase);
  // A change, an early end or a cut whose clock is not known yet. Its id is set
  // here.
  void OpenChange(wire::ModeChange change);
  void CloseChange();
  void SetArrived(Clock arrived);
  void SetEntered(int phase);
  void SetCut(const wire::Cut& cut);

  enum class Committed {
    kNothing,  // Nothing was edited.
    kChange,   // view() has its new number, and change() says what is new.
    kWhole,    // view() has its new number, and it alone says what is new.
  };
  Committed Commit();
  // What the last commit has changed, if it was a kChange.
  const wire::ViewChange& change() const { return change_; }

 private:
  using FollowerKey = std::pair<int32_t, int32_t>;  // Shard and server.

  void GiveShard(int32_t shard, Owner owner);
  // The move is no longer listed.
  void Unlist(const wire::Move& move);
  // Takes all moves off the list for which `is_over` is true.
  template <typename Predicate>
  void DropMoves(Predicate is_over);
  // The place of the first follower that is not before the key.
  int PlaceOf(FollowerKey key) const;
  wire::Follower* MutableFollower(int32_t shard, int32_t server);
  // To be called before the follower is changed, or comes, or goes.
  void Touch(FollowerKey key);
  void PutFollower(wire::Follower follower);
  // What the edits have made of the followers.
  void PutFollowerChanges();

  wire::View view_;
  wire::ViewChange change_;   // The last committed.
  wire::ViewChange pending_;  // What the edits since then have added to lists.
  bool whole_ = false;        // Edits that a change cannot express.
  uint64_t owners_since_;     // As owners_since() says.
  std::map<int32_t, int32_t> owned_;     // Shards by server; no entry: none.
  std::map<int32_t, int32_t> followed_;  // Copies by server; no entry: none.
  // Followers that edits have touched: as a view that has not these edits, but
  // the splits, has them. nullopt: it has none there.
  std::map<FollowerKey, std::optional<wire::Follower>> touched_;
  bool edited_ = false;
  bool regroup_ = false;
};

}  // namespace slackline
