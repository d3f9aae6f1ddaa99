// PhaseFollower: what a worker does next, between two steps: step, change from
// servers to all-reduce or back, connect, wait, or finish. The worker's side of
// docs/protocols/mode-change.md.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "common/ids.h"
#include "common/sync/modes/step_kind.h"
#include "common/view/shard_map.h"
#include "proto/control.pb.h"

namespace slackline {

class PhaseFollower {
 public:
  struct Options {
    Rank rank{};
    // The clock at which it begins, if the view says it; -1: its group or its
    // servers do.
    Clock begins_at = -1;
  };
  enum class Do {
    kStep,       // Do the step of the clock; see Decision::step.
    kWait,       // Wait for another view than this; see Decision::waiting_for.
    kTakeState,  // PullState() at the clock, then TookState().
    kConnect,    // Connect as the view's group, then Connected().
    // Install Share() at the clock, then GaveState(). Until a pull of that
    // clock is answered, install Share() of every newer view, too: somebody may
    // die.
    kGiveState,
    kFinish,  // All steps are done, and nobody needs this worker.
  };
  struct Decision {
    Do what{};
    StepKind step{};
    std::string waiting_for;  // Completes "waits for ...".
    // For the coordinator; send them first. The caller may add its figures to
    // an Entered.
    std::vector<wire::Call> calls;
  };

  // `has_model`: it begins with the model, as before a step of which
  // WorkersHaveModel() is true. Else the servers have it.
  PhaseFollower(const Options& options, bool has_model);

  // The worker has completed `clock` steps (-1: it has yet to ask its group how
  // many there are), and would ask for the parameters of the next one. `view`
  // is RUNNING and has the worker.
  Decision Next(const View& view, Clock clock);
  // What a worker that is held up in what Next() said last, and sees this view,
  // tells the coordinator at once. Others may have stopped at their limits, so
  // that the step cannot end before.
  std::vector<wire::Call> Promise(const View& view);

  // Over servers: the largest clock, at least `clock`, up to which the worker
  // may leave steps out. Next() has to be asked there.
  Clock SkipLimit(const View& view, Clock clock) const;

  void TookState();
  void Connected(uint64_t group) { group_ = group; }
  // An operation of the view's group, or connecting it, has failed. The call is
  // for the coordinator.
  wire::Call ConnectionLost(uint64_t group);
  // Shards of the view that this worker has to install and has not yet.
  std::vector<ShardId> Share(const View& view);
  void GaveState();

  // Whether the workers have the model now, rather than the servers.
  bool has_model() const { return has_model_; }
  uint64_t group() const { return group_; }  // 0: not connected.

 private:
  const Options options_;
  bool has_model_;
  uint64_t group_ = 0;
  uint64_t lost_group_ = 0;
  Clock clock_;  // The clock of the last Next(), or the first.
  uint64_t promised_change_ = 0;
  Clock limit_ = 0;
  Clock arrived_ = -1;       // Clock at which the coordinator was told.
  Clock entered_ = 0;        // Beginning of the phase that it was told of.
  std::vector<bool> given_;  // By shard: Share() had it since TookState().
};

// Whether a worker that the view has just got as a new member gets the model
// from other workers, if it starts while the job runs, rather than from the
// servers.
bool JoinsWorkersWithModel(const View& view);

}  // namespace slackline
