// Where shards are: nothing changes its owner but by a move that was ordered,
// or because the owner was lost and a follower has all of it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "tests/sim/check/cut_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

struct TwinMove {
  Owner source;
  Owner target;
  bool go = false;         // Its source has said so.
  bool cancelled = false;  // Its target was lost.
};

class MoveTwin {
 public:
  MoveTwin(const Scenario& scenario, const ShardTwins& shards, CutTwin& cuts,
           Findings& findings)
      : scenario_(scenario),
        shards_(shards),
        cuts_(cuts),
        findings_(findings) {}

  void CheckMoves(const wire::View& before, const wire::View& view);
  // Whether the job had to fail, if it has for a reason that is about servers.
  void CheckFailure(const wire::View& before, const wire::View& view);
  // The source of a move has sent the last record.
  void OnGo(int32_t shard, uint64_t move);

  // By shard and id: all that were ever ordered.
  const std::map<std::pair<int32_t, uint64_t>, TwinMove>& moves() const {
    return moves_;
  }
  // The move that was done, so that the view of this number was made.
  const TwinMove* DoneIn(uint64_t view_number) const;
  // The owners of a shard before and after the view of this number, which
  // replaces one that was lost; nullptr: it does not.
  const TwinMove* FailoverIn(uint64_t view_number) const;
  // It was given to one who followed it, or kept by one.
  bool IsInherited(int32_t shard) const { return inherited_.count(shard) > 0; }
  // A move was cancelled: perhaps what is lost is kept.
  bool has_given_up() const { return !given_up_.empty(); }

 private:
  // By a move whose target has died since.
  bool WasGivenToTheLost(int32_t shard) const;
  // The owner in `view` has to be one in whose copy nothing is missing.
  void CheckHeir(const wire::View& before, const wire::View& view,
                 int32_t shard);

  const Scenario& scenario_;
  const ShardTwins& shards_;
  CutTwin& cuts_;
  Findings& findings_;
  std::map<std::pair<int32_t, uint64_t>, TwinMove> moves_;  // By shard and id.
  std::map<uint64_t, std::pair<int32_t, uint64_t>> done_in_;  // By view.
  std::map<uint64_t, TwinMove> failover_in_;  // By view: one of its shards.
  std::set<int32_t> inherited_;
  std::set<int32_t> given_up_;  // Shards of which a move was cancelled.
};

}  // namespace slackline::sim
