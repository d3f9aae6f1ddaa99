// SlowServerWatch: which server makes the steps of workers long, from how long
// its answers to gradients take (run::ServerAnswers), beside what they took
// before and what those of the other servers take.
//
// The figures are those of rounds. A round ends once each worker has told of
// itself, and of `steps_min` steps on average. Means over all steps of it are
// compared, and not those of the last 20 steps without the longest: a server
// that stands still now and then makes a few steps out of many long. What else
// there is in a step is that of the last 20.
//
// An alarm begins after `rounds_slow` such rounds in a row: what happens once
// is in two at most, since workers tell of themselves at moments of their own.
// In each of them
//   - answers of the server take `begins_above` times as long as before, more
//     than the rounds before vary, and have become so much slower than those of
//     the other servers; of a server that is the only one, its shard threads do
//     less than before. And a step has become longer by pushing and pulling, by
//     `excess_min` and by `share_min` of it.
//   - or, of a server that has always been so: its shard threads do less than
//     the others' while they are busy for longer (ServerPace::Bottleneck), its
//     answers take longer than theirs by `begins_above` times and `excess_min`,
//     and workers are pushing and pulling for `share_min` of a step.
// It ends below `ends_below`. Rounds in which there may be an alarm are no
// past. The past begins anew where shards have moved, or other workers are
// there.
//
// Deterministic state machine without I/O and without a time of its own.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/server_pace.h"

namespace slackline {

class SlowServerWatch {
 public:
  struct Options {
    double begins_above = 1.5;  // Times what it is measured by.
    double ends_below = 1.25;
    absl::Duration excess_min = absl::Milliseconds(1);
    double share_min = 0.2;     // Of a step.
    double deviations_min = 5;  // Standard deviations of the rounds before.
    int64_t steps_min = 5;      // In a round, of each worker on average.
    int rounds_min = 10;        // As many make a past.
    int past_rounds = 60;       // What is so long ago counts 1/e.
    int rounds_slow = 3;
  };

  explicit SlowServerWatch(const Options& options) : options_(options) {}

  // `stats` can be (stats_check.h).
  void OnReport(Incarnation worker, const run::WorkerStats& stats);
  // It has no step left, and is forgotten.
  void OnTrained(Incarnation worker) { workers_.erase(worker); }
  // `view` is RUNNING; `pace` has heard of its servers.
  void Look(const wire::View& view, const ServerPace& pace);
  // From here on steps are other work.
  void Clear();

  // The alarm of the last round, which has no rank.
  const std::optional<run::Straggler>& alarm() const { return alarm_; }

 private:
  struct Answers {
    uint64_t messages = 0;
    double seconds = 0;
  };
  // What a worker has done since it began.
  struct Totals {
    int64_t steps = 0;
    run::StepPhases phases;
    std::map<int32_t, Answers> answers;  // By server.
  };
  struct Worker {
    Totals begun;  // When the round began.
    Totals last;
    bool heard = false;  // It was heard in this round.
    Clock clock = 0;
    // Seconds of its last steps but for pushing and pulling, without the
    // longest: a pause of one worker is no reason not to name a server.
    double others = 0;
  };
  // What all workers have done in a round.
  struct Round {
    // Seconds of a step.
    double pushing = 0;
    double pulling = 0;
    double step = 0;
    std::map<int32_t, double> answer;  // Seconds of one, by server.
    Clock clock = 0;                   // Of the worker that is ahead.
  };
  // Mean over rounds, and its square's.
  struct Past {
    double mean = 0;
    double squares = 0;
    int rounds = 0;
    double deviation() const;
  };
  struct Suspect {
    int32_t server = 0;
    bool than_before = false;
    double measure = 0;  // Seconds that an answer of it should take.
  };

  // Whether workers and shards are where they were; else the past is none.
  void FollowView(const wire::View& view);
  Round EndRound();
  void Judge(const Round& round, const ServerPace& pace);
  std::optional<Suspect> FindSlower(const Round& round,
                                    const ServerPace& pace) const;
  std::optional<Suspect> FindSlow(const Round& round,
                                  const ServerPace& pace) const;
  // The median of the figures of the servers but this one.
  static std::optional<double> MedianOfOthers(
      const std::map<int32_t, double>& figures, int32_t server);
  bool HasPast(const Past& past) const {
    return past.rounds >= options_.rounds_min;
  }
  void Add(double figure, Past* past) const;
  void Describe(const Round& round, const ServerPace& pace);

  const Options options_;
  std::map<Incarnation, Worker> workers_;
  // The owner of each shard, then the workers.
  std::vector<uint64_t> arrangement_;
  std::map<int32_t, Past> answers_;  // By server, in seconds.
  Past pushing_;
  Past pulling_;
  std::optional<Suspect> suspect_;  // Whom the last round suspects.
  int rounds_suspected_ = 0;        // So many rounds in a row do.
  Clock even_at_ = 0;               // Of the last round without a suspect.
  std::optional<run::Straggler> alarm_;
};

}  // namespace slackline
