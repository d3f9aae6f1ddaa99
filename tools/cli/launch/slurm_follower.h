// What a terminal says about a job of Slurm, and does, from its submission to
// its end.
//
// Deterministic state machine: what squeue says goes in, sentences and the
// wishes of the user come out. Thread-compatible.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace slackline {

// A job as squeue has it.
struct SlurmJob {
  std::string state;   // "PENDING"
  std::string reason;  // "Resources"; "None": there is none.
  int wait_status =
      0;             // Of its batch script, as of wait(2), once it has ended.
  int restarts = 0;  // How often it was queued again.
  std::string nodes;
  std::string start;  // When it is expected to begin; "N/A": not known.
};
// What squeue's --Format is for ParseSqueue().
inline constexpr char kSqueueFormat[] =
    "State:|,Reason:|,exit_code:|,RestartCnt:|,NodeList:|,StartTime:|";
// nullopt: Slurm does not know the job. InvalidArgument: it is no line of that
// format.
absl::StatusOr<std::optional<SlurmJob>> ParseSqueue(absl::string_view output);

// It waits for its turn, the first one or again.
bool SlurmJobWaits(const SlurmJob& job);
// Its script runs, and nobody has begun to end it.
bool SlurmJobRuns(const SlurmJob& job);
// It will not change any more.
bool SlurmJobIsOver(const SlurmJob& job);
// Of a job that is over, as a shell has it: of its script, or 1 where Slurm has
// ended it.
int ExitCodeOf(const SlurmJob& job);

class SlurmFollower {
 public:
  SlurmFollower(std::string id, absl::Time now)
      : id_(std::move(id)), changed_(now) {}

  struct Effects {
    std::vector<std::string> lines;  // For people, for good.
    // Cancel the job if it waits for its turn still.
    bool cancel_waiting = false;
    bool cancel = false;           // At once, and all that it runs.
    int interrupts = 0;            // So many SIGINTs to the script.
    std::optional<int> exit_code;  // It is over.
    bool over_unseen = false;      // It is over, and Slurm has forgotten how.
  };
  // What squeue has said. `has_output`: the file with the job's output is seen
  // from here.
  Effects OnLook(const std::optional<SlurmJob>& job, bool has_output,
                 absl::Time now);
  // Ctrl-C: the first cancels a job that waits, and ends one that runs early,
  // with its model; the next stops it at once; the third has Slurm kill it.
  Effects OnInterrupt(absl::Time now);

  // Its folder shows that the run has ended.
  void OnEndSeen(absl::Time now) { changed_ = now; }

  // What it waits for, in a line; empty: it does not wait.
  std::string WaitingLine() const;
  bool Runs() const { return job_.has_value() && SlurmJobRuns(*job_); }
  // When to ask squeue again: soon after a change, else seldom, since many ask.
  absl::Time NextLook(absl::Time last) const;

 private:
  const std::string id_;
  absl::Time changed_;  // The state, or what the user wants.
  std::optional<SlurmJob> job_;
  bool said_not_shared_ = false;
  bool has_output_ = false;
  absl::Time runs_since_ = absl::InfiniteFuture();
  int interrupts_ = 0;       // Of the user.
  int interrupts_sent_ = 0;  // To the script.
};

}  // namespace slackline
