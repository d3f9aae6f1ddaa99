// What `slackline compare` and `slackline ablate` are told: their flags.
#pragma once

#include <string>
#include <vector>

namespace slackline {

struct CompareOptions {
  std::string subcommand = "compare";  // For messages.
  std::string out_dir;                 // Empty: experiments/NAME.
  std::string data_dir;                // Empty: see LocateData().
  std::string bin_dir;                 // Of the other programs.
  std::string program;                 // slackline itself.
  std::string command;                 // What repeats and resumes the whole.
  std::string only;      // Names of variants, with '*' and '?'. Empty: all.
  bool dry_run = false;  // Only say what would be done.
  bool fresh = false;    // Finished runs are made again.
  bool retry_failed = false;  // Failed ones are.
  bool report = true;         // Make it at the end.
  // Where to, as TrackOptions::to; empty: what the base config says.
  std::vector<std::string> track = {};
};

}  // namespace slackline
