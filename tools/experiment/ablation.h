// `slackline ablate`: an experiment from flags instead of a file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/experiment/experiment_file.h"

namespace slackline {

struct AblationOptions {
  std::string base;               // Path of the cluster config.
  std::vector<std::string> over;  // "FIELD=VALUE,VALUE"; at least one.
  std::vector<std::string> sets;
  std::vector<std::string> tune;       // As `over`; none: nothing is tuned.
  std::vector<int64_t> tune_seeds;     // Only with tune. Empty: the default.
  std::vector<std::string> tune_sets;  // Only with tune.
  std::string mode;                    // Empty: the config's.
  std::string replay;                  // Empty: jobs.
  std::string delays;                  // Empty: the config's mode.
  std::vector<int64_t> seeds;
  std::string name;  // Empty: made of the config's name and the fields.
  std::string title;
  std::string baseline;
  std::optional<double> stop_accuracy;
  std::optional<double> stop_loss;
  std::optional<double> target_accuracy;
  std::optional<double> target_loss;
  int parallel = 1;
};

// InvalidArgument: all problems, one in a line; the places are the flags.
absl::StatusOr<ExperimentSource> MakeAblation(const AblationOptions& options);

// Cuts "a,{b: 1, c: 2},[3,4]" at commas that are in no brackets. Without the
// blanks around the pieces.
std::vector<std::string> SplitValues(absl::string_view text);

// Of `flag`. "3" are 1, 2, 3, or three from `first` on; otherwise a list of
// seeds and ranges: "7-9,12". A single seed is a range, "7-7".
absl::StatusOr<std::vector<int64_t>> ParseSeeds(absl::string_view flag,
                                                absl::string_view text,
                                                int64_t first = 1);

}  // namespace slackline
