// Failovers: a follower that begins to serve a shard has everything that
// anybody was told of it.
#pragma once

#include <cstdint>
#include <string>

#include "server/shard/shard_core.h"
#include "tests/sim/check/copy_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/pull_twin.h"
#include "tests/sim/check/resume_twin.h"
#include "tests/sim/check/shard_twins.h"
#include "tests/sim/job/scenario.h"

namespace slackline::sim {

class FailoverTwin {
 public:
  FailoverTwin(const Scenario& scenario, const ResumeTwin& resume,
               ShardTwins& shards, PullTwin& pulls, CopyTwin& copies,
               Findings& findings)
      : scenario_(scenario),
        resume_(resume),
        shards_(shards),
        pulls_(pulls),
        copies_(copies),
        findings_(findings) {}

  // A follower begins to serve the shard, because its view says so.
  void OnPromoted(Owner owner, int32_t shard, const View& view,
                  const ShardMachine& machine);
  // The owner does not know yet that it is none any more.
  void OnTraceOfDeposed(const ShardTraceRecord& record, const ShardCore& core);

 private:
  void CheckTold(const ShardTwin& twin, const std::string& who);

  const Scenario& scenario_;
  const ResumeTwin& resume_;
  ShardTwins& shards_;
  PullTwin& pulls_;
  CopyTwin& copies_;
  Findings& findings_;
};

}  // namespace slackline::sim
