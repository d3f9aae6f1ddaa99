// How workers keep in step: a mode with its parameters (sync::Mode), as people
// write it, as the config has it, and whether it can be. What a mode means:
// modes/mode_rule.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/sync/modes/mode_problem.h"
#include "google/protobuf/message.h"
#include "proto/mode.pb.h"

namespace slackline {

// Phases of a job: those of the config, and those that changes add. Every view
// lists them all, because requests say how many their sender knows.
inline constexpr int kPhasesMax = 1000;

// What is wrong with the mode in a job of so many workers; empty: nothing. The
// only place that decides it, for configs and for commands.
std::vector<ModeProblem> ProblemsOf(const sync::Mode& mode, int workers);
// The first of them with its mode, "dssp:4:3: max_staleness: value is 3; ...";
// empty: there is none.
std::string WhyNoMode(const sync::Mode& mode, int workers);

// The mode of a config::Sync or config::Phase; BSP if it has none of them.
sync::Mode ConfiguredMode(const google::protobuf::Message& block);
// Makes `mode` the block's mode in place of the present one.
void PutConfiguredMode(const sync::Mode& mode,
                       google::protobuf::Message* block);

// "bsp", "ssp:3", "dssp:3:15", "asp", "backup:1", "allreduce": as --mode has
// it. "delays:uniform:8" if delays are given. "unknown" if it is no mode.
std::string ModeText(const sync::Mode& mode);
// The mode of such a text, with its parameters written out; "ssp" has the
// schema's default. nullopt: it is no mode, or given delays, which are no mode
// that one can change to.
std::optional<sync::Mode> ModeFromText(absl::string_view text);
// Whether they have the same text: a default that is written out makes no
// difference.
bool SameMode(const sync::Mode& a, const sync::Mode& b);

}  // namespace slackline
