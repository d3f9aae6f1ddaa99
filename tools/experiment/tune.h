// Which of the values that were tried are the best ones (message Tune of
// proto/experiment.proto).
//
// Pure; any thread may call it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/experiment/plan.h"

namespace slackline {

// How one run of a plan of tries has ended.
struct TryOutcome {
  enum class State { kMissing, kFinished, kDiverged, kFailed };
  State state = State::kMissing;
  // Of a finished one. NaN: not measured.
  double test_accuracy = 0;
  double test_loss = 0;
};

// One combination of values for one variant.
struct TriedValues {
  AxisValues values;
  std::vector<int> runs;         // Indices into the runs of the tries.
  std::optional<double> result;  // Mean; nullopt: not of all runs.
  int diverged = 0;              // So many of its runs.
  int failed = 0;                // Otherwise.
  int missing = 0;
};

struct TunedVariant {
  std::vector<TriedValues> tried;  // In the order of the axes.
  std::optional<int> chosen;       // Index into `tried`.
  // The chosen number is the smallest or the largest of an axis.
  bool at_edge = false;
  // Why nothing is chosen. Empty while tries are missing.
  std::string left_out;
};

struct Tuning {
  bool by_accuracy = true;  // Otherwise by test loss.
  std::vector<TunedVariant> variants;

  // For ExpandExperiment().
  std::vector<std::optional<AxisValues>> Chosen() const;
};

// For each of `variants` variants of the experiment. The highest mean of the
// test accuracy is the best, or the lowest of the test loss if a finished try
// of any variant has no accuracy; of equal ones the first. Values of which a
// run has diverged are not chosen; where one has failed otherwise, nothing is.
// `outcomes`: by index into tries.runs.
Tuning Tune(const ExperimentPlan& tries, absl::Span<const TryOutcome> outcomes,
            int variants);

// Of a variant with a chosen value at an edge: "rate_factor=0.25 is the
// smallest value that was tried; try smaller ones", for each such axis.
std::vector<std::string> EdgeTexts(const TunedVariant& variant);

}  // namespace slackline
