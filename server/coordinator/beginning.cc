#include "server/coordinator/beginning.h"

#include "absl/strings/str_cat.h"

namespace slackline {

std::string WhatGoesOn(const FoundRun& found) {
  constexpr char kAnew[] =
      "--new-run begins anew, and another --out leaves this run alone";
  if (found.kind == FoundRun::Kind::kFinished || !found.has_checkpoint)
    return kAnew;
  return absl::StrCat(
      "--restore, for all servers, goes on from its last checkpoint; ", kAnew);
}

absl::StatusOr<Beginning> HowToBegin(const FoundRun& found,
                                     const BeginningFlags& flags) {
  using Kind = FoundRun::Kind;
  if (flags.new_run || found.kind == Kind::kNone) return Beginning::kNewRun;
  const bool lives = found.kind == Kind::kLives;
  // A checkpoint may be gone on from with another config; a state may not.
  if (flags.from_checkpoint && !lives &&
      (found.kind != Kind::kFinished || !found.why_other.empty())) {
    return Beginning::kNewRun;
  }
  if (!found.why_other.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the run in ", found.place, " ", found.why_other,
        "; give the config and the flags that it has; or --new-run, which "
        "begins anew there; or another --out"));
  }
  if (lives) return Beginning::kGoOn;
  if (flags.started_again && found.kind != Kind::kFinished)
    return Beginning::kNewRun;
  if (found.kind == Kind::kLost) {
    return absl::FailedPreconditionError(absl::StrCat(
        found.place, " has the records of a run that has not ended",
        found.reason.empty() ? "" : ", and cannot go on: ", found.reason,
        "; it is not replaced by itself: ", WhatGoesOn(found)));
  }
  return Beginning::kOver;
}

}  // namespace slackline
