// The modes of a running job, for people: docs/manual/modes.md.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "proto/control.pb.h"

namespace slackline {

// The mode in which all workers train, as in --mode: "ssp:3". Empty before the
// job runs.
std::string ModeName(const wire::View& view);

// The same with who decides, and what is known of the next one: "bsp, allreduce
// from clock 512"; "allreduce (auto), changing to ssp:3" while a policy is on
// and the next one has no clock yet.
std::string ModeOutlook(const wire::StatusReply& status);

// "changed from bsp to asp at clock 512; the workers stood still for at most
// 1.50 ms and moved 10.7 MB"
std::string ModeChangeText(const run::ModeRecord& record);

// A line for each change that is done, at most the last `max`. Empty without.
std::string ModeChangesTable(const wire::StatusReply& status, int max);

// For programs: docs/manual/commands.md.
nlohmann::ordered_json ModesJson(const wire::StatusReply& status);

// All phases, the change that is open, what the policy says, and the changes
// that are done.
std::string ModesText(const wire::StatusReply& status);

}  // namespace slackline
