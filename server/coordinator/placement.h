// Placement: when shards move: users' calls, the planner at its interval, and
// what the servers say of moves under way. Which moves are wanted and ordered
// is the Rebalancer's (rebalancer.h), which ones are good the planner's
// (planner.h).
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/rebalancer.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Placement {
 public:
  // The others outlive it.
  Placement(const Rebalancer::Options& options, Membership* members,
            const ModeControl* modes, ViewEditor* editor);

  // The job begins to run: places the tables on all servers' threads.
  void Start(const std::vector<wire::Table>& tables, int64_t shard_elements,
             absl::Time now);

  // Rebalance, move_shards or drain: the answer is the plan. Its moves follow.
  absl::StatusOr<run::Plan> OnCall(const wire::Call& call, absl::Time now,
                                   CoordinatorEffects* effects);
  // A server has said how loaded it is, and how far its moves are. True if a
  // move is done. It ends the job if a shard is lost. `seconds`: since the job
  // began to run.
  bool OnServerStats(const Member& server, double seconds, absl::Time now,
                     CoordinatorEffects* effects);
  void PlanIfDue(absl::Time now, CoordinatorEffects* effects);
  absl::Time NextPlan() const { return next_plan_; }
  // A server without shards is gone.
  void OnGone(const Member& server, CoordinatorEffects* effects);

  // There may be room for a move that had to wait.
  void NoteNews() { news_ = true; }
  // Orders what can start now, if there is news. To be called at the end of an
  // event.
  void Order();

  // Empty, or why the server cannot leave.
  std::string WhyMustStay(const Member& server) const;

  void PutStatus(int64_t moves_known, wire::StatusReply* status) const;
  void PutSummary(run::Summary* summary) const;

 private:
  // OK if shards can move now; UNAVAILABLE if they cannot just now.
  absl::Status MayMove() const;
  std::vector<Rebalancer::Server> Servers() const;
  void PutOffPlan(absl::Time now);

  const Rebalancer::Options options_;
  Membership* const members_;
  const ModeControl* const modes_;
  ViewEditor* const editor_;
  Rebalancer rebalancer_;
  absl::Time next_plan_ = absl::InfiniteFuture();
  bool news_ = false;  // For Order().
};

}  // namespace slackline
