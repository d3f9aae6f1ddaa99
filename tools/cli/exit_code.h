// What every subcommand returns to the shell.
#pragma once

namespace slackline {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

}  // namespace slackline
