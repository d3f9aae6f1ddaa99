// An experiment as a list of runs: every variant, with every combination of
// values from the axes, from every seed. All of it is checked before anything
// runs.
//
// Reads the base config and recorded delays, otherwise pure; any thread may
// call it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/experiment.pb.h"
#include "tools/experiment/experiment_file.h"

namespace slackline {

struct PlannedVariant {
  std::string name;               // Unique; fit for a file name.
  std::string mode;               // ModeText() of its config.
  std::vector<std::string> sets;  // Its own, without those of the experiment.
  std::string replay;  // ReplaySpec::text; empty: a job of processes.
  // Field and value, in the order of the experiment's axes. With several
  // variants in the file and axes, "variant" and its name are the first.
  std::vector<std::pair<std::string, std::string>> axes;
  // Resolved, with the first seed; without a coordinator port, so that each run
  // gets one that is free.
  config::ClusterConfig config;
};

struct PlannedRun {
  int variant = 0;  // Index.
  int64_t seed = 0;
  // 16 hexadecimal digits over all that determines the run: its config, without
  // the port, and its delays. Not the training data themselves.
  std::string key;
  std::string
      name;  // Of its folder: VARIANT-seedN-KEY, the key cut to 8 digits.
  config::ClusterConfig config;
};

struct ExperimentPlan {
  // With its defaults filled in; `base` is an absolute path, and so is each
  // recorded `replay`.
  experiment::Experiment experiment;
  std::string base_text;  // Content of `base`.
  std::vector<PlannedVariant> variants;
  // In the order in which they run: every variant with the first seed, then
  // with the second. So each variant has a result early.
  std::vector<PlannedRun> runs;
};

// NotFound: the base config cannot be read. InvalidArgument: all problems of
// all variants, one in a line; each begins with the place of the variant and
// its name, and a problem that all variants share is there once.
absl::StatusOr<ExperimentPlan> ExpandExperiment(const ExperimentSource& source);

}  // namespace slackline
