// Pulls: each answer is one version of its shard, no staler than the bound, and
// what may go does not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "common/sync/staleness_gate.h"
#include "server/shard/shard_core.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_comparison.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/turn_plan.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

// A pull as its worker has sent it.
struct PullIntent {
  Clock clock = 0;
  Clock own_clock = 0;
  bool join = false;
  bool state = false;
  bool exact = false;
  std::set<int64_t> rows = {};  // That it names; empty: it asks for all.
  // By shard: versions, and the index of the log at which it was answered first
  // with that.
  std::map<int32_t, std::map<Version, uint64_t>> answered;
};

class PullTwin {
 public:
  PullTwin(const Scenario& scenario, ViewTwin& views,
           const ShardComparison& comparison, const TurnPlan& turns,
           ShardTwins& shards, Findings& findings)
      : scenario_(scenario),
        views_(views),
        comparison_(comparison),
        turns_(turns),
        shards_(shards),
        findings_(findings) {}

  // A worker's client has put this on its way.
  void OnSent(const Life& life, const wire::PullRequest& request);
  // This has reached a worker's client, before the client looks at it.
  void OnReply(const Life& life, const Message& message);
  void OnPulled(Rank rank, Incarnation incarnation, const PullResult& result);
  // What the owner of the shard says that it has done.
  void OnPullAnswered(ShardTwin& twin, const ShardTraceRecord& record,
                      Owner owner);
  // What waits at the shard has to wait.
  void CheckWaiting(const ShardTwin& twin, const StalenessGate& gate,
                    Owner owner);
  // What a worker has seen of a shard, it has seen of its new part.
  void InheritSeen(int32_t from, int32_t to);
  // The log of the shard goes no further than `index` any more.
  void ForgetAnswersAfter(int32_t shard, uint64_t index);
  // nullptr: the worker has sent no such pull.
  PullIntent* Find(const Life& life, uint64_t request);

 private:
  void CheckAnswer(const Life& life, const wire::PullAnswer& answer,
                   uint64_t view_number, const Payload& payload);

  const Scenario& scenario_;
  ViewTwin& views_;
  const ShardComparison& comparison_;
  const TurnPlan& turns_;
  ShardTwins& shards_;
  Findings& findings_;
  std::map<std::pair<Life, uint64_t>, PullIntent> pulls_;  // By request.
  std::map<std::pair<Life, int32_t>, Version>
      seen_;  // Last version, by worker and shard.
};

}  // namespace slackline::sim
