// What a rank brings to an operation of its group of simulated workers.
#pragma once

#include <memory>
#include <vector>

#include "common/ids.h"
#include "tests/sim/job/sim_replica.h"
#include "worker/core/catch_up.h"

namespace slackline::sim {

struct SimShare {
  Rank rank{};
  Incarnation incarnation = 0;
  Standing standing;
  std::shared_ptr<const SimReplica> state;
  std::vector<SimReplica::Tensor> gradients;  // By table.
  bool counts = true;  // Else the gradients are zeros: it has no examples.
};

}  // namespace slackline::sim
