// What anybody is told of a shard, all have who may come to serve it; and
// followers are as many as there are to be.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/message.h"
#include "server/shard/shard_core.h"
#include "tests/sim/check/copy_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/move_twin.h"
#include "tests/sim/check/pull_twin.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class ToldTwin {
 public:
  ToldTwin(const Scenario& scenario, const ViewTwin& views, ShardTwins& shards,
           PullTwin& pulls, const CopyTwin& copies, const MoveTwin& moves,
           Findings& findings)
      : scenario_(scenario),
        views_(views),
        shards_(shards),
        pulls_(pulls),
        copies_(copies),
        moves_(moves),
        findings_(findings) {}

  void CheckFollowers(const wire::View& before, const wire::View& view);
  // The thread sends this.
  void OnShardSends(Owner owner, const std::vector<Outgoing>& sends);
  // Followers that shards lack though there are servers for them, for people.
  std::string MissingCopies();

 private:
  // Those that may come to serve the shard, besides who does.
  std::vector<Owner> WhoMustHave(int32_t shard, Owner server) const;
  // All who must have what `server` says of the shard are so far in its log
  // that it `has` it.
  void CheckConfirmed(const ShardTwin& twin, Owner server,
                      const std::string& what,
                      const std::function<bool(uint64_t index)>& has);
  // The follower has all that anybody was told of the shard.
  void CheckHasTold(const ShardTwin& twin, Owner follower,
                    const std::optional<Owner>& server, const std::string& who);
  // The thread tells the worker so.
  void OnAccepted(Owner owner, const Life& life, int32_t shard, uint64_t seq);
  void OnAnswered(Owner owner, const Life& life,
                  const wire::PullAnswer& answer);

  const Scenario& scenario_;
  const ViewTwin& views_;
  ShardTwins& shards_;
  PullTwin& pulls_;
  const CopyTwin& copies_;
  const MoveTwin& moves_;
  Findings& findings_;
};

}  // namespace slackline::sim
