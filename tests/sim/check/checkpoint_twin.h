// Checkpoints: each is whole and has its cut's state, none is given up or
// refused without need, and a job that is suspended leaves one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "tests/sim/check/cut_twin.h"
#include "tests/sim/check/findings.h"
#include "tests/sim/check/program_twin.h"
#include "tests/sim/check/view_twin.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_checkpoint.h"

namespace slackline::sim {

class CheckpointTwin {
 public:
  CheckpointTwin(const Scenario& scenario, const ViewTwin& views, CutTwin& cuts,
                 ProgramTwin& programs, Findings& findings)
      : scenario_(scenario),
        views_(views),
        cuts_(cuts),
        programs_(programs),
        findings_(findings) {}

  // All parts of the cut are one checkpoint; or it could not be written.
  void OnCheckpoint(
      int32_t cut,
      const absl::StatusOr<std::shared_ptr<const SimCheckpoint>>& made);
  // The coordinator has given the cut up. `excuse` is why it had to; nullptr:
  // nothing has gone wrong.
  void OnGivenUp(int32_t cut, const char* excuse);
  // A user was told that there will be no checkpoint.
  void OnCheckpointRefused(const std::string& why);
  // The job has ended so, although a checkpoint was to be taken before, or
  // because it was.
  void OnSuspended(const wire::JobEnd& end);
  // The worker's script goes on after its last step.
  void OnWorkAfterLast(const Life& life) { worked_after_last_.insert(life); }

 private:
  using StoredByName =
      std::map<std::pair<std::string, int64_t>, const ShardState*>;
  void CheckKept(const TwinCut& cut, const StoredByName& shards);
  // The shard is the model's, to the last bit.
  bool IsOf(const JobModel& model, const ShardState& shard) const;
  // The job was to be suspended, and was stopped because scripts were at work
  // after its last step.
  void CheckStoppedAfterLast(const wire::JobEnd& end);
  void CheckManifest(const TwinCut& cut, const checkpoint::Manifest& manifest);

  const Scenario& scenario_;
  const ViewTwin& views_;
  CutTwin& cuts_;
  ProgramTwin& programs_;
  Findings& findings_;
  std::set<Life> worked_after_last_;
};

}  // namespace slackline::sim
