// WorkerParts: what the parts of a WorkerCore share, for the length of one
// event, and the few things that several of them do.
//
// | part | decides |
// | --- | --- |
// | WorkerSteps | what comes next, from one step to the next; of these parts: |
// | PhaseFollower | step, change, connect, wait or finish |
// | StepPulls, StepTables | when parameters are asked for, and what has come |
// | StepExamples | which examples a step has |
// | GroupSteps | steps by all-reduce, and their group |
// | Evaluations, CutDuties | what else is due between two steps |
// | ProgramPlace, ChangeTimes | what else is due when the mode changes |
// | Conclusion | how the chief ends the job |
// | Departure | how a worker leaves before the end |
// | Patience | how long it waits, and when it says so |
// | Notices | what it tells the coordinator |
//
// What a part sends is never answered within the event, and a part calls no
// other but those that it owns. What only the core can do a part asks for with
// a WorkerRequest, as the last thing that it does; the core does it when the
// part has returned. So no part is entered while another one is in the middle
// of something.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/membership/member_core.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"
#include "worker/core/notices.h"
#include "worker/core/patience.h"
#include "worker/core/worker_core_options.h"
#include "worker/core/worker_counts.h"
#include "worker/core/worker_effects.h"
#include "worker/core/worker_stage.h"

namespace slackline {

// All steps of the worker are done, and its gradients are where they have to
// be. The worker is kTrained.
struct StepsDone {};
// The worker cannot go on: it leaves the job with this.
struct CannotGoOn {
  absl::Status why;
  std::string traceback = {};  // For the summary.
  bool stops_job = false;      // Whether or not that could do without it.
};
// The training of these workers has diverged, at this clock: the job ends.
struct HasDiverged {
  std::string why;
  std::vector<int32_t> workers;
  Clock clock = 0;
};
// WorkerSteps::Decide() is to be called.
struct DecideNext {};
// What a part asks for is done when it has returned: no part is called while it
// is at work.
using WorkerRequest =
    std::variant<DecideNext, StepsDone, CannotGoOn, HasDiverged>;

struct WorkerParts {
  const WorkerCoreOptions& options;
  Rank rank;  // This worker's.
  absl::Time now;
  MemberCore& member;
  WorkerStage& state;
  Patience& patience;
  Notices& notices;
  WorkerCounts& counts;
  std::deque<WorkerRequest>& requests;
  WorkerEffects& effects;

  // The worker has a view: the job runs.
  const View& view() const { return *member.view(); }
  bool IsChief() const;

  // Entering a stage is a sign of progress.
  void Enter(WorkerStage next) const;
  void Act(worker_action::Action action) const {
    effects.actions.push_back(std::move(action));
  }
  void Log(std::string line) const { effects.log.push_back(std::move(line)); }
  void Ask(WorkerRequest request) const {
    requests.push_back(std::move(request));
  }

  // Calls the coordinator, and returns the call's id.
  uint64_t Call(wire::Call call) const;
  // Calls the coordinator; the answer does not matter.
  void Notify(wire::Call call) const;
  // Tells the coordinator at once where the worker is, with these statistics.
  void SendHeartbeat(const run::WorkerStats& stats) const;
  // Sends what comes of a call of the client, which does nothing else.
  void Send(const ClientCore& client, ClientCore::Effects sent) const;
};

// The worker has failed or has been given up, and decides nothing any more.
inline bool IsOver(WorkerStage state) {
  return state == WorkerStage::kLeaving || state == WorkerStage::kEnded;
}
// The worker does something with its group that a loss of the group ends.
inline bool IsInGroup(WorkerStage state) {
  return state == WorkerStage::kConnecting ||
         state == WorkerStage::kCatchingUp || state == WorkerStage::kReducing;
}

}  // namespace slackline
