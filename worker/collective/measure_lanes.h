// How fast a group sums each way.
#pragma once

#include "absl/status/statusor.h"
#include "worker/collective/collective.h"
#include "worker/collective/lane_plan.h"

namespace slackline {

// Sums 256 KiB to 4 MiB each way, three times, beside nothing else of the
// group; of each way the fastest of these counts, on the rank where it took
// longest. All ranks call it, and get the same. The group has servers. Errors
// as of Collective::Wait().
absl::StatusOr<LaneCosts> MeasureLanes(Collective& group);

}  // namespace slackline
