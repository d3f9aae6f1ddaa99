// What every subcommand returns to the shell.
#pragma once

// kExitSuspended: a job that can go on from its last checkpoint.
#include "common/membership/end_status.h"

namespace slackline {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
// As of a program that SIGINT has killed: a script should not go on. The job
// has ended early, with its model.
inline constexpr int kExitInterrupted = 130;

}  // namespace slackline
