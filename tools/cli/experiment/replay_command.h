// `slackline replay`: training in one process, with given delays in place of
// workers that are really apart.
#pragma once

#include <string>

#include "common/config/cluster_config.h"

namespace slackline {

struct ReplayOptions {
  std::string config_path;
  ConfigOverrides overrides;
  std::string delays;    // As in ParseReplaySpec(), relative to this folder.
  std::string data_dir;  // Empty: see LocateData().
  std::string out_dir;   // Empty: runs/JOB-replay-DELAYS-TIME.
  std::string bin_dir;   // Of slackline_replay.
};

// Returns the exit code: kExitDone only if the summary is on stdout.
int Replay(const ReplayOptions& options);

inline constexpr char kReplayProgram[] = "slackline_replay";

}  // namespace slackline
