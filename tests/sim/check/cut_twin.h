// Cuts: what each shard is at one follows from its twin's list of updates
// alone, whatever the shard did to get there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/checkpoint/shard_state.h"
#include "server/shard/shard_core.h"
#include "tests/sim/check/all_reduce_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_arithmetic.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_replica.h"

namespace slackline::sim {

// What a shard has for its turns at a cut, if delays are given.
struct CutTurns {
  int64_t over = 0;
  struct Waiting {
    Version base = 0;
    Tensor gradient;
  };
  std::map<std::pair<Clock, Rank>, Waiting> waiting = {};
  struct Kept {
    Version version = 0;
    Tensor values;
  };
  std::map<int64_t, Kept> kept = {};
};

// What a shard is at a cut.
struct CutShard {
  std::string table;
  TableId id{};  // Of the table.
  int64_t begin = 0;
  int64_t end = 0;
  Version version = 0;
  Tensor values = {};
  Versions slots = {};
  bool late = false;  // With updates that came behind some after the cut.
  RunningRms running_rms = {};
  std::optional<CutTurns> turns = {};
};

struct TwinCut {
  wire::Cut proto;
  uint64_t view_number = 0;  // The first view with it.
  std::set<Life> gone;       // By then: what they have pushed stays.
  bool given_up = false;
  bool completed = false;
  Clock clock = 0;  // Of the manifest, once it is completed.
  std::map<Owner, std::vector<CutShard>> parts;
  std::map<Rank, JobModelPtr> kept;
  // Workers whose programs have to be in it, unless they die, and until where.
  std::map<Life, Clock> programs;
};

class CutTwin {
 public:
  CutTwin(const Scenario& scenario, const ViewTwin& views,
          const ShardArithmetic& arithmetic, const TurnPlan& turns,
          ShardTwins& shards, AllReduceTwin& all_reduce, Findings& findings)
      : scenario_(scenario),
        views_(views),
        arithmetic_(arithmetic),
        turns_(turns),
        shards_(shards),
        all_reduce_(all_reduce),
        findings_(findings) {}

  // The view has a cut where there can be one, and nobody is there already.
  void CheckCut(const wire::View& before, const wire::View& view);
  // No shard moves or is split in two before all have their state at the cut.
  void CheckNoCutPending(const std::string& what);
  // A shard thread that does not know of a cut accepts nothing after it, and
  // none has less in its cut than it had accepted.
  void CheckCutFence(const ShardTwin& twin, const Contribution& contribution,
                     const std::string& who, Owner owner);
  // After an event of the thread that serves it.
  void FollowCopy(ShardTwin& twin, const ShardCore& core, Owner owner);
  // The shards of a thread are at a cut; their bytes have got to the disk.
  void OnCut(Owner owner, const ShardCore::CutState& state);
  void OnPartWritten(Owner owner, const ShardCore::CutState& state);
  // A worker has kept `state` at `clock` for the cut; its bytes have got to the
  // disk.
  void OnKept(Rank rank, Incarnation incarnation, int32_t cut, Clock clock,
              const SimReplica& state);
  void OnKeptWritten(Rank rank, int32_t cut, const SimReplica& state);
  // The threads of another process had its parts.
  void OnServerStarts(int32_t server);
  void CompareCut(const CutShard& expected, const ShardState& actual,
                  const std::string& when);

  std::map<int32_t, TwinCut>& cuts() { return cuts_; }  // By number.
  // The view that has the cut; 0: none has.
  uint64_t ViewOfCut(int32_t cut) const;

 private:
  bool IsBefore(const TwinCut& cut, const Contribution& contribution) const;
  bool IsBefore(const TwinCut& cut, const TwinUpdate& update) const;
  // The shard counts its gradients as those of so many workers at the cut.
  int PresentAt(const TwinCut& cut, const ShardTwin& twin,
                const TwinUpdate& update) const;
  // Everything before the cut has been pushed.
  bool IsComplete(const TwinCut& cut, const ShardTwin& twin) const;
  CutShard StateAt(const TwinCut& cut, const ShardTwin& twin) const;
  // The same where delays are given: the cut is after some of the turns.
  CutShard StateAfterTurns(const TwinCut& cut, const ShardTwin& twin) const;
  void CompareTurns(const CutTurns& expected, const StoredTurns& actual,
                    const std::string& what);

  const Scenario& scenario_;
  const ViewTwin& views_;
  const ShardArithmetic& arithmetic_;
  const TurnPlan& turns_;
  ShardTwins& shards_;
  AllReduceTwin& all_reduce_;
  Findings& findings_;
  std::map<int32_t, TwinCut> cuts_;
};

}  // namespace slackline::sim
