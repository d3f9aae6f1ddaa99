// ActionLine: the actions of a WorkerCore that its driver has not begun, in
// their order, and which of them are performed while the driver's program
// stands at a gather of the workers' programs.
//
// Whoever stands at a gather waits for the other programs, and these may wait
// for this worker in a new group before they come there. So what needs no
// program goes on meanwhile:
//
// | at a gather, the program is | what is done |
// | --- | --- |
// | in a step, or before one, whose group is over | the step is lost |
// | in another step | nothing |
// | before evaluations | they are taken off, if what follows them is done |
// | before another action that needs it | nothing |
// | before another action | the action |
//
// An evaluation that is taken off keeps its parameters, which the others' state
// may replace then; the program evaluates them when it asks what comes next.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/sync/modes/step_kind.h"
#include "worker/core/worker_actions.h"

namespace slackline {

class WorkerCore;

class ActionLine {
 public:
  using Action = worker_action::Action;

  // One of Effects::actions, in their order.
  void Add(Action action);
  bool empty() const { return actions_.empty(); }

  // The program is in no step, and asks what comes next: the oldest action, of
  // which there is one. If that is a step of the program, it is in that step
  // until OnStepOver().
  std::unique_ptr<const Action> Take();
  // What Take() gave last is still to be done: the program has something else
  // to do before it.
  void PutBack(std::unique_ptr<const Action> action);
  // The program has finished its step, or has given it up.
  void OnStepOver() { open_.reset(); }

  // What a driver does whose program stands at a gather; it asks again after
  // it, and after every event. At most one of the two.
  struct AtGather {
    // What to perform now. The program does its part of an Evaluate later.
    std::unique_ptr<const Action> action;
    // Not OK: the step that the program is in, or would be in next, cannot end,
    // and why. The line has forgotten it. The driver drops it and its group and
    // calls OnGroupLost(); the core hands the step out again.
    absl::Status lost;
  };
  AtGather NextAtGather(const WorkerCore& core);

 private:
  std::deque<std::unique_ptr<const Action>> actions_;
  std::optional<StepKind> open_;  // The step that the program is in.
};

}  // namespace slackline
