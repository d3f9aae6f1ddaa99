// What the phases of a job mean for one clock: docs/protocols/mode-change.md.
// Pure functions of the list in wire::View, which is sorted by `from` and
// starts at clock 0.
#pragma once

#include "common/ids.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "proto/run.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// Steps that a worker may begin, from its own clock on, while the clock of a
// change is negotiated: so far ahead is the limit that it promises. Enough for
// the messages; more would only put the change off.
inline constexpr Clock kStepLimitAhead = 4;

// The clock at which all workers have completed their steps, as far as it is
// known: a job may be ended early. kClockMax: nobody knows it yet, since the
// job is elastic.
Clock EndOf(const wire::View& view);

// Whether a worker that says this of itself has no step left, and all of its
// gradients are acknowledged. Where some are not, it waits for a server, and
// says so. A program that asks for the state after its last step makes its
// worker wait in the same way: so whoever has trained once has trained.
bool HasTrained(const run::WorkerProgress& progress, const wire::View& view);

// The phase that steps of `clock` obey, and its index. `clock` is at least 0
// and there is a phase: else fatal.
const wire::Phase& PhaseAt(const wire::View& view, Clock clock);
int PhaseIndexAt(const wire::View& view, Clock clock);

// The phase after the one of `clock`, or nullptr.
const wire::Phase* PhaseAfter(const wire::View& view, Clock clock);
// An elastic job may end before all phases of the config have begun.
Clock EndOfPhase(const wire::View& view, int index);

// The rule of that phase.
const ModeRule& RuleAt(const wire::View& view, Clock clock);

// What a step of this clock is, and the first one of this phase.
StepKind StepAt(const wire::View& view, Clock clock);
StepKind FirstStepOf(const wire::Phase& phase);

// The phase whose delays are given; nullptr: the job has none.
const wire::Phase* GivenDelaysPhase(const wire::View& view);

// What a shard must have before it answers a pull of `clock`: what the mode of
// the phase needs, and what the phase before leaves behind. `granted`: to a
// worker that may do the mode's extra steps.
PullNeeds NeedsAt(const wire::View& view, Clock clock, bool granted = false);

}  // namespace slackline
