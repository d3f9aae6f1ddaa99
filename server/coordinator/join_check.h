// What a request to join may contain, whoever sends it and whatever the job:
// lengths, counts and forms. Checked before anything of it is kept, compared or
// told to others.
#pragma once

#include <string>

#include "proto/wire.pb.h"

namespace slackline {

// Empty, or a sentence that names the first thing that does not fit, with its
// bound. It repeats no text of the request.
std::string WhyNoJoin(const wire::JoinRequest& join);

}  // namespace slackline
