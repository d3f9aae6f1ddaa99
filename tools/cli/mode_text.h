// The modes of a running job, for people: docs/protocol-mode-change.md.
#pragma once

#include <string>

#include "proto/wire.pb.h"

namespace slackline {

// The mode in which all workers train, as in --mode: "ssp:3". Empty before the
// job runs.
std::string ModeName(const wire::View& view);

// The same and what is known of the next one: "bsp, allreduce from clock 512";
// "bsp, changing to asp" while that has no clock yet.
std::string ModeOutlook(const wire::View& view);

}  // namespace slackline
