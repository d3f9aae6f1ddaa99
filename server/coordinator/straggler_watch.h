// StragglerWatch: which worker or server is slow, in which phase of its steps,
// and since when, from what workers say of their last steps (run::RecentSteps).
//
// What is compared is a worker's own time for a step: without waiting for
// others, and without all-reduce, in which it waits for them, too. So whoever
// stands at a barrier is not slow; who comes there last is. It is compared
//   - with the median of the other workers (relative),
//   - with the worker's own past (individual), the decayed mean of its steps
//     before. If most workers are slower than they were, none of them is to
//     blame, and one alarm is about all.
//
// An alarm begins where a worker takes more than `begins_above` times as long,
// by at least `excess_min`, and by so much that the spread of the steps does
// not explain it; it ends below `ends_below`. What is compared should be of one
// time: so everybody has to have reported since the worker was not even any
// more. The workers' own means are over at most 20 steps without the two
// longest, so a pause is no alarm, and a worker that becomes twice as slow has
// one within 20 steps, or three heartbeats where that takes longer.
//
// Servers have alarms of their own (slow_server_watch.h). Without one of these,
// where what has become slower is pushing or pulling, of all or of the only
// worker, a server may be the reason: the alarm names it (server_pace.h).
//
// A worker that stays slower than it was is measured by that after
// `settled_after` steps. In a new phase of the job's mode the past begins anew.
//
// Deterministic state machine without I/O and without a time of its own.
// Thread-compatible.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"
#include "server/coordinator/server_pace.h"
#include "server/coordinator/slow_server_watch.h"

namespace slackline {

class StragglerWatch {
 public:
  struct Options {
    double begins_above = 1.5;  // Times what it is measured by.
    double ends_below = 1.25;
    absl::Duration excess_min = absl::Milliseconds(1);
    // Standard errors of the difference of two means.
    double errors_min = 5;
    int32_t steps_min = 20;  // A worker of which fewer are known is not judged.
    int64_t past_steps_min = 100;  // As many make a past.
    int64_t past_steps = 400;      // What is so long ago counts 1/e.
    int64_t settled_after = 1000;
    // Others wait for at least this part of a step: then a mode would help.
    double waiting_min = 0.2;
  };

  explicit StragglerWatch(const Options& options)
      : options_(options),
        servers_(ServerPace::Options()),
        slow_servers_(SlowServerWatch::Options()) {}

  // `stats` can be (stats_check.h).
  void OnReport(Incarnation worker, const run::WorkerStats& stats);
  // It has no step left, and is forgotten.
  void OnTrained(Incarnation worker) {
    workers_.erase(worker);
    slow_servers_.OnTrained(worker);
  }

  void OnServerReport(Incarnation server, const run::ServerStats& stats) {
    servers_.OnReport(server, stats);
  }

  struct News {                      // Sentences.
    std::vector<std::string> begun;  // Alarms begin, or name another phase.
    std::vector<std::string> ended;
  };
  // `view` is RUNNING.
  News Look(const wire::View& view);

  // The job does not run any more.
  void Clear();

  // Says what the last look has found.
  void PutStatus(wire::StatusReply* status) const;
  const std::vector<run::Straggler>& alarms() const { return alarms_; }

 private:
  // The figures of a worker's step, in seconds. The phases that are its own
  // come first.
  enum Figure {
    kLoading,
    kComputing,
    kPushing,
    kPulling,
    kOwn,
    kDeviation,
    kWaiting,  // For others, at all-reduce as well.
    kStep,     // All of it.
    kFigures
  };
  static constexpr int kPhases = kOwn;
  using Figures = std::array<double, kFigures>;
  // What one comparison has come to.
  struct Comparison {
    Clock even_at = 0;  // Where the worker was not slower.
    // Number of the report since which it is not even; 0: it is.
    int64_t uneven_since = 0;
    std::optional<run::Straggler> alarm = {};
    bool of_all = false;  // Others are not even, either.
  };
  struct Worker {
    int32_t rank = 0;
    Clock clock = 0;
    run::RecentSteps recent;
    int64_t report = 0;  // The number of the last one.
    Figures now = {};
    Figures past = {};       // The figures of its past.
    int64_t past_steps = 0;  // So many steps count there.
    int64_t past_until = 0;  // The step up to which the past goes.
    Comparison relative;
    Comparison individual;
    run::Slowness slowness;
    bool HasAlarm() const {
      return relative.alarm.has_value() || individual.alarm.has_value();
    }
  };

  static const char* NameOf(int phase);
  void TakeFigures(const wire::View& view);
  // Looks at one worker's step, beside what it is measured by. `steps`: the
  // number of steps in the mean of that; `all_heard`: the number of the oldest
  // of the last reports of all.
  void Compare(const Worker& worker, const Figures& measure, double steps,
               int64_t all_heard, bool than_before, Comparison* comparison);
  void AddToPast(Worker* worker) const;
  // Workers that have been slower than before for `settled_after` steps are so
  // by now: what is left is to say so, and to measure by that.
  void Settle(const std::vector<Worker*>& known, News* news);
  void BeginPastAnew(Worker* worker) const;
  // One alarm, if most workers are slower than they were.
  void LookAtAll(const std::vector<Worker*>& known);
  // Which server is slow, or to blame for what has become slower, of all
  // workers.
  void LookAtServers(const wire::View& view, size_t workers,
                     std::vector<run::Straggler>* now, News* news);
  std::string AdviceFor(const Figures& others, int slow, int workers,
                        const wire::View& view) const;
  // What has changed against alarms_.
  void Say(const wire::View& view, const std::vector<run::Straggler>& now,
           const std::vector<Worker*>& known, News* news) const;

  const Options options_;
  std::map<Incarnation, Worker> workers_;
  int64_t reports_ = 0;
  int64_t mode_phase_ = -1;  // View.entered.
  std::optional<run::Straggler> of_all_;
  ServerPace servers_;
  std::optional<int32_t> slow_server_;  // The one that has been said.
  SlowServerWatch slow_servers_;
  // By rank; that of all comes first, that of a server last.
  std::vector<run::Straggler> alarms_;
};

}  // namespace slackline
