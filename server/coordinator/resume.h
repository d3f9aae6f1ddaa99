// What a job begins with that goes on from a checkpoint: whether its tables are
// those of the checkpoint, and at which clock each worker begins.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// Empty, or why a job with the tables of this view, whose phases it has, cannot
// go on from the checkpoint: names the table and the fix. Completes "the job
// cannot go on from checkpoint F: ".
std::string WhyNotFrom(const checkpoint::Manifest& manifest,
                       const wire::View& view);

// At which clock each of the view's workers begins, by rank; the view has the
// job's length and phases. With as many workers as the checkpoint has, and as
// many steps in an epoch, where each of them was, if the workers may be at
// different clocks there. Else all begin at one clock, by the part of the
// training data that the slowest was done with. None begins after the end.
std::map<int32_t, Clock> BeginningsOf(const checkpoint::Manifest& manifest,
                                      const wire::View& view);

}  // namespace slackline
