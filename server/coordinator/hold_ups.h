// HoldUps: what is concluded from how the members get on: who keeps others from
// going on, and who is slow. It looks a few times in the time between two
// heartbeats of one member, at all of them. How that is judged is the
// StallWatch's (stall_watch.h) and the StragglerWatch's (straggler_watch.h).
//
// Nothing of this goes to the next coordinator, which sees for itself.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/stall_watch.h"
#include "server/coordinator/straggler_watch.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class HoldUps : public CoordinatorPart {
 public:
  // `editor` outlives it. `options.lease` says how often it looks.
  HoldUps(const StallWatch::Options& options, const ViewEditor* editor);

  // An event begins (StallWatch::OnTime()).
  void OnEvent(absl::Time now) { stalls_.OnTime(now); }
  // The member has said how it gets on, and what it says can be.
  void OnWorkerStats(const Member& worker, const run::WorkerStats& stats,
                     absl::Time now);
  void OnServerStats(const Member& server);
  void OnGone(const GoneMember& gone, CoordinatorEffects*) override {
    stalls_.OnGone(gone.member.incarnation);
  }
  // Where the worker's program is (StallWatch::OnPlace()).
  void OnPlace(Incarnation worker, const std::string& where) {
    stalls_.OnPlace(worker, where);
  }

  // What there is to be done, by whoever can.
  struct Findings {
    std::vector<std::string> stragglers;  // Sentences about new ones.
    StallWatch::Findings stalls;
  };
  // Looks, and says what is new. nullopt: it is not time for that yet, or the
  // job does not run.
  std::optional<Findings> Look(absl::Time now, CoordinatorEffects* effects);

  // Says what the last look has found.
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;

 private:
  const ViewEditor* const editor_;
  const absl::Duration look_every_;
  StallWatch stalls_;
  StragglerWatch stragglers_;
  absl::Time next_look_ = absl::InfinitePast();
  std::vector<std::string> held_up_;  // Who holds whom up.
};

}  // namespace slackline
