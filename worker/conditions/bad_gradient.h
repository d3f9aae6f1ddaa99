// A gradient with a NaN, or of another size, where the config wants one: fault
// injection, to see what a job does about it.
#pragma once

#include <optional>

#include "common/ids.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Whether the gradient of this step is to have a NaN.
bool HasBadGradient(const config::Conditions& conditions, Clock step);

// How many times larger the gradient of this step is to be; nullopt: it is to
// be left as it is.
std::optional<float> ScaleOf(const config::Conditions& conditions, Clock step);

// A copy of the gradient, each float times `scale`.
Payload Scaled(const Payload& gradient, float scale);

// A copy of the gradient, at least one float, whose first float is a NaN.
Payload WithNan(const Payload& gradient);

}  // namespace slackline
