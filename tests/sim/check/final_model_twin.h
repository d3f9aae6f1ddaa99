// What the job leaves: the model that the chief has read or reported has every
// push and every example that it must have.
#pragma once

#include <vector>

#include "tests/sim/check/all_reduce_twin.h"
#include "tests/sim/check/example_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "worker/client/client_core.h"

namespace slackline::sim {

class FinalModelTwin {
 public:
  FinalModelTwin(const Scenario& scenario, const ViewTwin& views,
                 const ShardTwins& shards, ExampleTwin& examples,
                 AllReduceTwin& all_reduce, Findings& findings)
      : scenario_(scenario),
        views_(views),
        shards_(shards),
        examples_(examples),
        all_reduce_(all_reduce),
        findings_(findings) {}

  // The chief has read the final model; or reports what it has.
  void OnFinalPull(const PullResult& result);
  void OnFinalReplica(Rank rank, Incarnation incarnation,
                      const SimReplica& state);
  // By table. Empty: nothing.
  const std::vector<Tensor>& model() const { return final_model_; }

 private:
  const Scenario& scenario_;
  const ViewTwin& views_;
  const ShardTwins& shards_;
  ExampleTwin& examples_;
  AllReduceTwin& all_reduce_;
  Findings& findings_;
  std::vector<Tensor> final_model_;
};

}  // namespace slackline::sim
