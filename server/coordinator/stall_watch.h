// StallWatch: who keeps the workers of a job from going on, from what they say
// of themselves (run::WorkerProgress) with their heartbeats.
//
// A worker waits for others if it says so, or if it is done and others are not.
// It may be held up by those who do not wait for workers themselves: who work,
// or wait for a server or the coordinator, at a clock that is not beyond its
// own; in all-reduce at any clock. Once it has waited for the stall timeout,
// and one who holds it up has made no progress for that long either, the latter
// is to be removed: in all-reduce all of them at once, else those of the
// smallest clock first, because the rest may not be in anybody's way. Nobody is
// removed for whom nobody waits. If every live worker waits for a server, none
// is to blame, and the job cannot go on; the servers to which that one hands
// shards over are named with it. A worker that waited for a server from which a
// shard has just gone to another one has a moment to go on. A worker that has
// done its last step, and whose program does something else before it leaves,
// is in nobody's way but of those who are done: it has as long as the chief has
// to write the model. Once all have done their last step, that holds for each
// of them, and for the chief that writes it, whether anybody waits or not: the
// end of the job does.
//
// Time counts from what a worker says when its heartbeat arrives, and never
// from before the coordinator itself stood still last: what is read then is
// old. A worker that says nothing of its progress neither waits nor holds up.
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"

namespace slackline {

class StallWatch {
 public:
  struct Options {
    absl::Duration timeout = absl::Seconds(60);
    // The timeout of the chief that evaluates and writes the model once all are
    // done: there may be no room on the disk for a while. It holds, too, for
    // what a program does between its last step and the end.
    absl::Duration finish_timeout = absl::Seconds(660);
    absl::Duration lease = absl::Seconds(5);
  };
  struct Culprit {
    int32_t rank = 0;
    Incarnation incarnation = 0;
    // Completes "worker 2 was removed, ...".
    std::string why_removed;
  };
  struct Findings {
    // Sentences: who holds whom up at present. The timeout need not be over.
    std::vector<std::string> held_up;
    // Those of held_up that were not there before, or did not say where the
    // program is.
    std::vector<std::string> news;
    std::vector<Incarnation> holding_up;  // For whom others wait.
    std::vector<Culprit> remove;
    std::optional<wire::JobEnd> end;  // If the job cannot go on.
  };

  explicit StallWatch(const Options& options) : options_(options) {}

  // Tells the time, before anything else, whenever something happens. If
  // nothing has happened for more than half a lease, the coordinator is taken
  // to have stood still: members send something every fifth of a lease.
  void OnTime(absl::Time now);
  // `trained`: HasTrained() (common/sync/phases.h), of this report or an
  // earlier one.
  void OnReport(Incarnation worker, const run::WorkerProgress& progress,
                bool trained, absl::Time now);
  void OnGone(Incarnation worker);
  // Where the program of a worker that holds others up is, as in "train.py line
  // 41, in load". Forgotten when it gets on.
  void OnPlace(Incarnation worker, const std::string& where);

  // `view` is RUNNING. Who is to be removed is
  // named once; then there is a pause, in which the others can go on.
  Findings Look(const wire::View& view, absl::Time now);

 private:
  struct Report {
    run::WorkerProgress progress;
    bool trained = false;
    absl::Time at;
  };
  // A live worker at the time of a look.
  struct Worker {
    int32_t rank = 0;
    Incarnation incarnation = 0;
    Clock clock = 0;
    bool waits = false;   // For workers.
    bool blocks = false;  // It holds up those who wait for it.
    bool at_server = false;
    // Its step needs the others wherever they are: by all-reduce, or because
    // its pull has a turn that is given.
    bool needs_all = false;
    bool trained = false;
    // Its program is at work after its last step, or it is the chief that
    // writes the model, and every other worker is as far or done.
    bool delays_end = false;
    int32_t server = -1;
    absl::Duration still;  // Without progress, as far as that is known.
    absl::Duration limit;
    std::string doing;  // Completes "it is ...".
    bool Over() const { return still >= limit; }
  };

  void NoticeMoves(const wire::View& view, absl::Time now);
  std::vector<Worker> WorkersOf(const wire::View& view, absl::Time now);
  absl::Duration StillOf(const Report& report, absl::Time now) const;
  static bool Blocks(const Worker& culprit, const Worker& waiter);
  // nullopt unless all workers wait for servers, each for too long.
  std::optional<wire::JobEnd> EndIfAllWaitForServers(
      const wire::View& view, const std::vector<Worker>& workers) const;
  void Say(const std::vector<Worker>& workers, Findings* findings);
  // ", in train.py line 41, in load"; empty: the place is not known.
  std::string PlaceText(const Worker& culprit) const;

  const Options options_;
  absl::Time last_ = absl::InfinitePast();
  absl::Time counted_from_ = absl::InfinitePast();
  absl::Time judged_from_ = absl::InfinitePast();
  std::map<uint64_t, int32_t> moves_;    // Sources, at the last look.
  std::map<int32_t, absl::Time> moved_;  // When one ended last, by source.
  std::map<Incarnation, Report> reports_;
  std::map<Incarnation, absl::Time> done_since_;
  struct Said {
    std::string place;  // Empty: it is not known.
    bool with_place = false;
  };
  // What has been said: who, at which clock. Kept while it holds.
  std::map<std::pair<Incarnation, Clock>, Said> said_;
};

}  // namespace slackline
