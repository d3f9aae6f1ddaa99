// A gradient with a NaN where the config wants one: fault injection, to see
// what a job does about it.
#pragma once

#include "common/ids.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Whether the gradient of this step is to have a NaN.
bool HasBadGradient(const config::Conditions& conditions, Clock step);

// A copy of the gradient, at least one float, whose first float is a NaN.
Payload WithNan(const Payload& gradient);

}  // namespace slackline
