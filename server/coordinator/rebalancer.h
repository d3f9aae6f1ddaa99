// Rebalancer: what the coordinator knows of moves: which are wanted, ordered
// and done, and what the planner is told.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

struct PlannerResult;  // planner.h

class Rebalancer {
 public:
  struct Options {
    config::Rebalance config;
    int64_t split_elements_min = 1024;  // No piece of a split has fewer.
  };
  // A server of the view, and what it said last of itself.
  struct Server {
    int32_t index = 0;
    int threads = 1;
    bool draining = false;
    const run::ServerStats* stats = nullptr;
  };
  enum class Aim {
    kBalance,    // Lower the load of the most loaded thread; empty who drains.
    kFill,       // Do so down to the target, however little the load is:
                 // a server has nothing, which is no noise.
    kDrainOnly,  // Empty the draining servers, leave the rest as it is.
  };

  explicit Rebalancer(const Options& options) : options_(options) {}

  // Looks at what the servers have said of themselves, to know how fast each
  // thread is. Call it when there is news and it is due, before Plan(). Without
  // effect before that.
  bool ObserveDue(absl::Time now) const;
  void Observe(const std::vector<Server>& servers, absl::Time now);

  // What the planner says about the measured loads. Changes nothing. Failed
  // precondition: a server has not said yet how loaded it is.
  absl::StatusOr<run::Plan> Plan(const View& view,
                                 const std::vector<Server>& servers, Aim aim,
                                 absl::Time now) const;
  // Moves that a user wants. `thread` -1: the least loaded one. InvalidArgument
  // names what there is not, or the shard that is on its way already.
  absl::StatusOr<run::Plan> PlanMoves(const View& view,
                                      const std::vector<Server>& servers,
                                      const std::vector<int32_t>& shards,
                                      int32_t server, int32_t thread) const;

  // Wants the plan's moves, and makes its splits.
  void Adopt(const run::Plan& plan, ViewEditor* editor);
  // Lists as many wanted moves in the view as may be under way. A move to a
  // server that follows the shard goes to the thread which does; while a
  // follower of the shard is not in sync, the shard waits.
  void Order(ViewEditor* editor);
  // The source says that the move is done: the view lists the new owner. False
  // if it was no longer, or never, ordered.
  bool Done(const run::HandOverState& state, double seconds, absl::Time now,
            ViewEditor* editor, run::MoveRecord* record);
  // A server is gone, and so are the moves to it and off it.
  void Forget(int32_t server);
  // The shard has another owner, and is not to move any more.
  void ForgetShard(int32_t shard);
  // Whether it is about a move that was under way when its target went: the
  // last one of the shard.
  bool WasCutShort(const run::HandOverState& state) const {
    const auto found = cut_short_.find(state.shard());
    return found != cut_short_.end() && found->second == state.move();
  }

  // For the next coordinator: what is new since the last call, and everything.
  // Of the speed of threads it knows nothing. InvalidArgument: of the state.
  void Keep(KeptState* kept, coordinator::MovesState* state);
  absl::Status Load(const StateReader& reader,
                    const coordinator::MovesState& state);

  // Exactly these moves are under way.
  bool AreOrdered(
      const google::protobuf::RepeatedPtrField<wire::Move>& moves) const;

  // Nothing is wanted or under way.
  bool idle() const { return wanted_.empty() && ordered_.empty(); }
  // The moves under way and those that wait for their turn.
  run::Plan Present() const;
  const std::deque<run::MoveRecord>& last_moves() const { return last_moves_; }
  int64_t shards_moved() const { return shards_moved_; }
  uint64_t bytes_moved() const { return bytes_moved_; }
  run::Percentiles PauseMicros() const;

 private:
  struct Measured;

  // What the servers have said of their threads and shards, for the planner.
  absl::StatusOr<Measured> Measure(const View& view,
                                   const std::vector<Server>& servers,
                                   absl::Time now) const;
  // For people, and as moves that can be ordered.
  run::Plan PlanOf(const PlannerResult& result, const Measured& measured,
                   const View& view) const;
  double CapacityOf(Owner thread) const {
    const auto found = capacities_.find(thread);
    return found == capacities_.end() ? 1 : found->second;
  }
  run::PlannedMove Describe(const View& view, ShardId shard, Owner to) const;
  struct Ordered {
    run::PlannedMove move;
    uint64_t id = 0;  // As in the view.
  };

  const Options options_;
  std::map<Owner, double> capacities_;  // Relative to the median thread.
  absl::Time observed_ = absl::InfinitePast();
  std::deque<run::PlannedMove> wanted_;
  std::map<int32_t, Ordered> ordered_;      // By shard.
  std::map<int32_t, uint64_t> cut_short_;   // Moves by shard.
  std::map<int32_t, absl::Time> moved_at_;  // By shard.
  std::deque<run::MoveRecord> last_moves_;
  std::vector<int64_t> pauses_;
  int64_t shards_moved_ = 0;
  uint64_t bytes_moved_ = 0;
  std::set<int32_t> changed_;  // Shards whose moves are, since Keep().
};

}  // namespace slackline
