// ModeControl: who decides on the job's mode: the config's phases, users, and
// the policy while it is on; on an early end; and on cuts for the Checkpointer.
// How a change is made is the ModeChanger's (mode_changer.h).
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/sync/modes/mode_rule.h"
#include "proto/cluster.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_changer.h"
#include "server/coordinator/mode_policy.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class ModeControl : public CoordinatorPart {
 public:
  struct Options {
    config::Sync sync;
    int workers = 1;  // Of the config.
    // train.gradient_bound: no step is by all-reduce.
    bool servers_look_at_gradients = false;
    absl::Duration heartbeat = absl::Seconds(1);
  };
  // All of them outlive it.
  ModeControl(const Options& options, JobDelays* delays,
              const Membership* members, ViewEditor* editor);

  void OnStart(const JobStart& start, CoordinatorEffects* effects) override;

  // What a worker says about phases: step_limit, arrive, entered or regroup. It
  // ends the job if the workers' models differ.
  void OnCall(const Member& worker, const wire::Call& call,
              CoordinatorEffects* effects);
  // Answers what will happen.
  absl::StatusOr<std::string> OnSetMode(const wire::SetMode& set_mode,
                                        CoordinatorEffects* effects);
  absl::StatusOr<std::string> OnFinish(const wire::Finish& finish,
                                       CoordinatorEffects* effects);
  // Who has ended the job early and why; empty: nobody has.
  const std::string& ended_early() const {
    return changer_.end().ended_early();
  }
  // These ask the ModeChanger, and tell it.
  absl::Status MayCut() const;
  void WantCut(const std::string& reason);
  void CutDone();
  bool IsCutting() const { return changer_.cut().IsUnderWay(); }
  bool WaitsForCut() const { return changer_.cut().IsAwaited(); }
  // Why the cut that was wanted will not be; empty: that has not happened.
  // Once.
  std::string TakeCutDropped() { return std::exchange(cut_dropped_, {}); }
  // How far the shards of this server are, whatever else it says of itself.
  void OnServerStats(int32_t server, const run::ServerStats& stats);
  // Others own the shards of a server from the next view on, if it had any.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;
  // A worker is done, moves are done, or the job has got its end: a change may
  // have waited for that.
  void OnNews() override { news_ = true; }
  // Lets the policy decide, if it is on: when there is news of a worker, and at
  // NextWakeUp().
  void AskPolicy(absl::Time now, CoordinatorEffects* effects);
  WakeUp NextWakeUp() const override;
  void OnTime(const Moment& moment, CoordinatorEffects* effects) override {
    AskPolicy(moment.now, effects);
  }

  // Brings the view up to all of that. True if the view changed.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;

  // That of the config: all of the job's if it holds for a whole job.
  const ModeRule& configured() const {
    return RuleOf(ConfiguredMode(options_.sync));
  }

  // What a manifest says of the delays, if they are given.
  void PutDelays(checkpoint::Manifest* manifest) const {
    delays_->Put(editor_->view(), manifest);
  }

  // OK, or why no shard may start to move.
  absl::Status MayMove() const;
  // Empty, or why no worker can join just now.
  std::string WhyNoneJoins() const;

  // The policy measures anew.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;

  // Everything about modes that people ask for.
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;
  void PutSummary(run::Summary* summary) const override;

 private:
  std::vector<ModeChanger::Worker> Workers() const;
  void SwitchPolicyOn(CoordinatorEffects* effects);
  std::string Change(const sync::Mode& mode, const std::string& reason,
                     CoordinatorEffects* effects);

  const Options options_;
  JobDelays* const delays_;
  const Membership* const members_;
  ViewEditor* const editor_;
  ModeChanger changer_;
  std::optional<ModePolicy> policy_;  // While it chooses the mode.
  bool news_ = false;                 // For Advance().
  std::string cut_dropped_;
};

}  // namespace slackline
