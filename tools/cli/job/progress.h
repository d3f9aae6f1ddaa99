// What a running job looks like: from the coordinator's status replies to lines
// for people.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace slackline {

// "forming", "running", "finished" or "failed".
std::string StateName(wire::JobState state);

// How many workers have done their last step; their programs may work on.
int CountTrained(const wire::StatusReply& status);

// The speed of a growing total over the last seconds.
class RateMeter {
 public:
  // `now` does not go back. A smaller total than before starts anew: a process
  // that had counted is gone.
  void Add(absl::Time now, double total);
  // 0 until two totals are known.
  double PerSecond() const;

 private:
  std::deque<std::pair<absl::Time, double>> samples_;
};

// Thread-compatible; the time goes in with the status.
class Progress {
 public:
  void Update(const wire::StatusReply& status, absl::Time now);

  // For a terminal of `width` columns: one line of figures, the less important
  // ones left out where there is no room, and one with the workers' clocks.
  std::vector<std::string> Block(int width) const;
  // For a log: all figures in one line.
  std::string Line() const;
  // Whether a line of a log is one of those, of a job that runs.
  static bool IsLine(absl::string_view text);
  // The beginning of it that does not compare two statuses: mode, step, loss,
  // time left.
  std::string Headline() const;
  // The evaluations since the last call, one sentence each.
  std::vector<std::string> TakeEvaluations();

 private:
  // Both from the most to the least important.
  std::vector<std::string> MainFigures() const;
  std::vector<std::string> Figures() const;
  // The job is as far as its slowest worker.
  int64_t SlowestClock() const;

  wire::StatusReply status_;
  RateMeter examples_;
  RateMeter bytes_;
  int64_t last_evaluation_step_ = -1;
  std::vector<std::string> evaluations_;
};

// Seconds until `total` steps are done if the rest goes as fast as the first
// `step` did in `elapsed_seconds`; infinite when nothing is done yet, 0 when
// everything is or `total` is not known (0).
double SecondsLeft(int64_t step, int64_t total, double elapsed_seconds);

}  // namespace slackline
