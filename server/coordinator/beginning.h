// How a job begins where one may have been before: the command that started it
// once may be given again, by a person, systemd or Kubernetes, who do not know
// how far it has got. It goes on if there is something to go on from; what is
// finished stays finished; and nothing that a run has left is replaced unless
// somebody says so.
//
// A pure function: the caller has looked, and does what it says.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace slackline {

// What is in the place where the job keeps its state and its records.
struct FoundRun {
  enum class Kind {
    kNone,   // No run, or one that has ended before it had done a step.
    kLives,  // A coordinator's state of a job that has not ended.
    kFinished,
    kFailed,  // It has failed, or was stopped or suspended.
    kLost,    // It has left records, and neither a state nor an end.
  };
  Kind kind = Kind::kNone;
  std::string place = {};  // Its folder, or "etcd below PREFIX".
  // Empty, or why it is not the job that begins now: completes "the run in
  // PLACE".
  std::string why_other = {};
  std::string reason = {};      // Why it has failed, or is lost.
  bool has_checkpoint = false;  // One that --restore would take.
};

struct BeginningFlags {
  bool new_run = false;          // --new-run
  bool from_checkpoint = false;  // --resume or --restore
  // The command is the one that has begun the run: whoever gave it the machines
  // has taken them away since, and has started it again. Without a checkpoint
  // the run begins anew.
  bool started_again = false;
};

enum class Beginning {
  kNewRun,  // It begins from the checkpoint that the flags name, if any.
  kGoOn,    // It goes on with what the last coordinator has kept.
  kOver,    // Nothing begins: the run that is there has ended, and how is said.
};

// | found | no flag | --resume, --restore | --new-run | started again |
// | --- | --- | --- | --- | --- |
// | none | new | new | new | new |
// | lives | goes on | goes on | new | goes on |
// | finished | over | over; new if it is another job's or config's | new | over
// | | failed | over | new | new | new | | lost | refused | new | new | new |
//
// FailedPrecondition, which names the place and the flags that would do: as the
// table says; or what is there is another job's.
absl::StatusOr<Beginning> HowToBegin(const FoundRun& found,
                                     const BeginningFlags& flags);

// What to do instead, of a run that is over: a sentence without its period.
std::string WhatGoesOn(const FoundRun& found);

}  // namespace slackline
