// What is wrong with a worker's request whoever owns the shards that it names:
// its counts, its clocks and its payload frames. Nothing of it is looked at
// before that is clear.
#pragma once

#include <cstddef>
#include <string>

#include "proto/wire.pb.h"

namespace slackline {

// The payload frames that belong to the entry of a request without a fault; an
// installation has one for the values and one for each slot that it has.
size_t FramesOf(const wire::Push& push);

// A sentence without its beginning ("it has ..."), empty if nothing is wrong.
// `payloads` is the number of payload frames that came with the request.
std::string FaultOf(const wire::PushRequest& request, size_t payloads);
std::string FaultOf(const wire::PullRequest& request, size_t payloads);
std::string FaultOf(const wire::ProbeRequest& probe, size_t payloads);

}  // namespace slackline
