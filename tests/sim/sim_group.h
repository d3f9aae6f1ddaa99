// All-reduce between simulated workers: the groups that they form, and what
// goes wrong in them. A group does one operation after the other (connecting is
// the first); one that all members have begun ends for each at its own time,
// well or not. Whoever goes breaks it for the others, who notice sooner or
// later. With lanes (docs/manual/lanes.md) servers sum, too: then no operation
// gets on without them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/rng.h"
#include "common/view/shard_map.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_share.h"
#include "tests/sim/sim_network.h"

namespace slackline::sim {

class SimGroup {
 public:
  // All shares in the order of the ranks, or nullptr: the operation has failed.
  using Done = std::function<void(const std::vector<SimShare>* shares)>;
  using Faults = Modes::GroupFaults;
  struct LaneCounts {
    int64_t operations = 0;
    int64_t without_server = 0;  // That failed because one had gone.
    int64_t held = 0;            // That one which stood still held up.
  };

  // `servers`: those that sum; none without lanes.
  SimGroup(const std::vector<SimShare>& members, std::vector<int> servers,
           const Scenario& scenario, const Faults* faults, EventQueue* queue,
           const SimNetwork* network, LaneCounts* lanes, Rng rng);

  // The member's next operation; it has no other that is under way. `done` is
  // called once, later, unless the member leaves first.
  void Begin(Rank rank, SimShare share, Done done);
  // The member has gone, or has given up. With `silent` the others hear of it
  // only much later.
  void Leave(Rank rank, bool silent);
  // An operation of the member is under way.
  bool HasLeft(Rank rank) const { return members_.at(rank).left; }
  bool Busy(Rank rank) const { return members_.at(rank).done != nullptr; }

 private:
  struct Member {
    SimShare who;
    Node node = 0;
    size_t next = 0;  // Number of its next operation.
    bool left = false;
    bool broken = false;  // Knows that somebody has left.
    Done done;            // Of the operation that is under way.
  };
  using Operation = std::map<Rank, SimShare>;

  // The operation, which all members have begun at `begun`.
  void Deliver(size_t operation, absl::Time begun);
  // One of those that sum has ended, or stands still.
  bool MissesServer() const;
  bool HasStillServer() const;
  // Some member waits for the operation.
  bool IsWanted(size_t operation) const;
  void End(Member& member, const std::vector<SimShare>* shares);
  absl::Duration Soon();

  const std::vector<int> servers_;
  const Scenario& scenario_;
  const Faults* const faults_;
  EventQueue* const queue_;
  const SimNetwork* const network_;
  LaneCounts* const lanes_;
  Rng rng_;
  std::map<Rank, Member> members_;
  std::vector<Operation> operations_;
  std::vector<bool> complete_;  // Operations that all have begun.
  Lifetime lifetime_;
};

// The groups by the number that the view gives them.
class SimGroups {
 public:
  SimGroups(const Scenario& scenario, EventQueue* queue,
            const SimNetwork* network)
      : scenario_(scenario),
        queue_(queue),
        network_(network),
        faults_(scenario.modes.group_faults),
        rng_(Rng(scenario.seed).Fork("groups")) {}

  // The group of the view, which has workers.
  SimGroup* Of(const View& view);
  // From here on nothing fails unless somebody goes.
  void Heal() { faults_ = SimGroup::Faults(); }
  const SimGroup::LaneCounts& lanes() const { return lanes_; }

 private:
  const Scenario& scenario_;
  EventQueue* const queue_;
  const SimNetwork* const network_;
  SimGroup::Faults faults_;
  SimGroup::LaneCounts lanes_;
  Rng rng_;
  std::map<uint64_t, std::unique_ptr<SimGroup>> groups_;
};

}  // namespace slackline::sim
