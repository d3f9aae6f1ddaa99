// What the phases of a job mean for one clock: docs/protocol-mode-change.md.
// Pure functions of the list in wire::View, which is sorted by `from` and
// starts at clock 0.
#pragma once

#include "common/ids.h"
#include "common/sync/sync_mode.h"
#include "proto/wire.pb.h"

namespace slackline {

// Steps that a worker may begin, from its own clock on, while the clock of a
// change is negotiated: so far ahead is the limit that it promises. Enough for
// the messages; more would only put the change off.
inline constexpr Clock kStepLimitAhead = 4;

// The phase that steps of `clock` obey. `clock` is at least 0 and there is a
// phase: else fatal.
const wire::Phase& PhaseAt(const wire::View& view, Clock clock);

// The phase after the one of `clock`, or nullptr.
const wire::Phase* PhaseAfter(const wire::View& view, Clock clock);

// A shard answers a pull of `clock` when every live worker's pushes before this
// clock are applied: `clock` in BSP, `clock` - s in SSP, none in ASP and
// BACKUP; and at least the beginning of the phase if it follows BSP or
// ALLREDUCE. In ALLREDUCE it is `clock`. In DSSP s is the smallest bound, or
// the largest if `granted`.
Clock NeededClock(const wire::View& view, Clock clock, bool granted = false);

// And when all clocks before this one are complete: `clock` in BACKUP; and at
// least the beginning of the phase if it follows BACKUP. 0: NeededClock() says
// it all.
Clock NeededCompleteClock(const wire::View& view, Clock clock);

}  // namespace slackline
