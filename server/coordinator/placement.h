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
#include "server/coordinator/copies.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part.h"
#include "server/coordinator/rebalancer.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Placement : public CoordinatorPart {
 public:
  // The others outlive it.
  // `host_server` has the coordinator in its process, and has to stay.
  Placement(const Rebalancer::Options& options, int64_t shard_elements,
            int host_server, Membership* members, const ModeControl* modes,
            Copies* copies, ViewEditor* editor);

  // Places the tables on all servers' threads.
  void OnStart(const JobStart& start, CoordinatorEffects* effects) override;

  // This coordinator has taken over a job: its server stays, as it does, even
  // if that was to be drained by then.
  void KeepHost(CoordinatorEffects* effects);
  // Rebalance, move_shards or drain: the answer is the plan. Its moves follow.
  absl::StatusOr<run::Plan> OnCall(const wire::Call& call, absl::Time now,
                                   CoordinatorEffects* effects);
  // What has become of a server's moves.
  struct Arrivals {
    bool any = false;  // One is done.
    // Not empty: somebody who had a copy of it owns a shard that was lost on
    // its way, and this is the sentence that says how.
    std::string lost;
  };
  // A server has said how loaded it is, and how far its moves are. If nobody
  // has a copy of a shard that is lost on its way, the job ends. `seconds`:
  // since the job began to run.
  Arrivals OnServerStats(const Member& server, double seconds, absl::Time now,
                         CoordinatorEffects* effects);
  WakeUp NextWakeUp() const override;
  void OnTime(const Moment& moment, CoordinatorEffects* effects) override;
  // The moves of a server go with it.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // A server has joined the running job in place of one that is gone: what the
  // others had to take over is balanced once, if shards may move at all, as
  // soon as there is a load to go by, however little.
  void OnReplaced() { round_due_ = true; }

  // There may be room for a move that had to wait.
  void OnNews() override { news_ = true; }
  // Orders what can start now, if there is news.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;

  // Empty, or why the server cannot leave.
  std::string WhyMustStay(const Member& server) const;

  // The Rebalancer's state is kept, and whether a round is due.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;

 private:
  // A server owns no shard, and is not drained.
  bool AServerHasNothing() const;
  // OK if shards can move now; UNAVAILABLE if they cannot just now.
  absl::Status MayMove() const;
  std::vector<Rebalancer::Server> Servers() const;
  void PutOffPlan(absl::Time now);
  // The source has lost the shard to a target that is gone. Returns how.
  std::string OnLost(const Member& source, const run::HandOverState& state,
                     CoordinatorEffects* effects);

  const Rebalancer::Options options_;
  const int64_t shard_elements_;
  const int host_server_;
  Membership* const members_;
  const ModeControl* const modes_;
  Copies* const copies_;
  ViewEditor* const editor_;
  Rebalancer rebalancer_;
  absl::Time next_plan_ = absl::InfiniteFuture();
  bool news_ = false;  // For Advance().
  // A round is due even if nothing is planned automatically.
  bool round_due_ = false;
};

}  // namespace slackline
