// Suspension: an end of the job from which it can go on. Somebody's time is
// over: a checkpoint is taken first, and when it is whole the job ends as
// SUSPENDED.
//
// | meanwhile | the job ends as |
// | --- | --- |
// | the checkpoint is whole | SUSPENDED |
// | none can be taken, it is given up, or not there in time | STOPPED |
// | the job ends by itself, so that none is taken | it does: FINISHED |
// | it would, but programs go on working after their last step | STOPPED |
// | anything else that ends a job | that says |
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/run.pb.h"
#include "server/coordinator/checkpointer.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class Suspension : public CoordinatorPart {
 public:
  struct Options {
    // From the wish to the end of the job, in awake time.
    absl::Duration timeout = absl::Seconds(660);
    // The checkpoint that the job has gone on from; without a folder: none.
    run::CheckpointRecord resumed_from;
  };
  // All of them outlive it.
  Suspension(Options options, const Membership* members,
             Checkpointer* checkpointer, ViewEditor* editor)
      : options_(std::move(options)),
        members_(members),
        checkpointer_(checkpointer),
        editor_(editor) {}

  // `reason` says who wants it and why. The first one's counts; a later one
  // joins it.
  void Ask(const std::string& reason, absl::Time awake_now,
           CoordinatorEffects* effects);
  // Ends the job if it is time: before the Checkpointer draws its conclusions,
  // and when that has news. Takes its answer off once the job has ended, too.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;
  WakeUp NextWakeUp() const override;
  // The time for it begins anew.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;
  bool under_way() const { return reason_.has_value() && !editor_->ended(); }

 private:
  // Somebody wants the job to be suspended.
  void AskOrEnd(absl::Time awake_now, CoordinatorEffects* effects);
  // Once all workers have done their last step: those whose programs still
  // work.
  std::vector<std::string> AtWork() const;
  // Why there was no checkpoint in time.
  std::string WhyLate() const;
  void OnAnswer(const absl::StatusOr<std::string>& text);
  // The job ends as STOPPED, without a checkpoint.
  void StopBecause(absl::string_view why);

  const Options options_;
  const Membership* const members_;
  Checkpointer* const checkpointer_;
  ViewEditor* const editor_;
  std::optional<std::string> reason_;
  bool asked_ = false;  // The Checkpointer was asked; its answer is to come.
  bool said_at_work_ = false;
  absl::Time gives_up_at_;
};

}  // namespace slackline
