// ExampleGrants: calls of workers that ask for examples, in a job with
// elastic sampling, and the end of such a job: it is over once all examples are
// done. Who gets which examples is the GrantBook's (grant_book.h).
//
// In a job with static sampling it refuses every call, and does nothing else.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/grant_book.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/part.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/view_editor.h"

namespace slackline {

class ExampleGrants : public CoordinatorPart {
 public:
  // All of them outlive it.
  ExampleGrants(const Membership* members, ViewEditor* editor)
      : members_(members), editor_(editor) {}

  // The book begins with what the first worker has brought.
  void OnStart(const JobStart&, CoordinatorEffects*) override {
    book_.Start(Elastic());
  }

  // NextExamples and has_examples.
  static bool Takes(const wire::Call& call);
  // A call that it takes, of a worker that is a member.
  void OnCall(const Member& worker, const wire::Call& call,
              CoordinatorEffects* effects);
  // What the worker had goes to others.
  void OnGone(const GoneMember& gone, CoordinatorEffects* effects) override;

  // Ends the job if all examples are done: the view gets the clock at which it
  // ends, and true is returned. Those who wait for examples are told once the
  // view has it, whoever has ended the job.
  bool Advance(const Moment& moment, CoordinatorEffects* effects) override;

  // The epoch of the examples that are given next, in a running job with
  // elastic sampling.
  int64_t next_epoch() const { return book_.next_epoch(); }

  // The book is what is kept.
  void Keep(absl::Time now, KeptState* kept) override;
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;
  void PutSummary(run::Summary* summary) const override;

 private:
  // True if the view has got the clock of the job's end.
  bool EndIfAllDone(CoordinatorEffects* effects);
  void FollowEnd(CoordinatorEffects* effects);
  std::optional<wire::Elastic> Elastic() const;
  static void Send(std::vector<GrantBook::Answer> answers,
                   CoordinatorEffects* effects);

  const Membership* const members_;
  ViewEditor* const editor_;
  GrantBook book_;
};

}  // namespace slackline
