// An experiment as a list of runs: every variant, with every combination of
// values from the axes, from every seed. All of it is checked before anything
// runs. What an experiment tries before its runs (message Tune) is a plan, too.
//
// Reads the base config and recorded delays, otherwise pure; any thread may
// call it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "proto/experiment.pb.h"
#include "tools/experiment/experiment_file.h"

namespace slackline {

// Fields and values of axes, in the order of the axes.
using AxisValues = std::vector<std::pair<std::string, std::string>>;

// Far from those that people give their runs.
inline constexpr int64_t kFirstTuneSeed = 1001;

struct PlannedVariant {
  std::string name;  // Unique; fit for a file name.
  std::string mode;  // ModeText() of its config.
  // Its own, without those of the experiment and of the tune.
  std::vector<std::string> sets;
  std::string replay;  // ReplaySpec::text; empty: a job of processes.
  // Of the experiment's axes. With several variants in the file and axes,
  // "variant" and its name are the first.
  AxisValues axes;
  // Of the tune's axes: what was chosen or, in a plan of tries, what is tried.
  AxisValues tuned;
  // Index of this variant or, in a plan of tries, of the variant of the
  // experiment that is tried.
  int experiment_variant = 0;
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
  std::string name;  // Of its folder: VARIANT-seedN-KEY, of the key 8 digits.
  config::ClusterConfig config;
};

struct ExperimentPlan {
  // Of the base config, with what the experiment sets: who is told of the
  // experiment and its runs. The configs of these have none.
  config::Track track;
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
//
// `tuned`, of an experiment with `tune`: the values of each variant, by index.
// A variant that has none, or is beyond the end, has no runs.
absl::StatusOr<ExperimentPlan> ExpandExperiment(
    const ExperimentSource& source,
    const std::vector<std::optional<AxisValues>>& tuned = {});

// The tries of an experiment with `tune`, with the same errors: each of its
// variants with each combination of the tune's values, from the tune's seeds.
// `experiment` has the tune's seeds for its own.
absl::StatusOr<ExperimentPlan> ExpandTries(const ExperimentSource& source);

}  // namespace slackline
