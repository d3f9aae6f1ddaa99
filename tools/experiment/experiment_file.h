// The experiment file (proto/experiment.proto): read, and checked by itself.
// Whether its variants give valid configs is seen when it is expanded (plan.h).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/block/field_origins.h"
#include "proto/experiment.pb.h"

namespace slackline {

// An experiment from a file or from flags.
struct ExperimentSource {
  experiment::Experiment experiment;
  FieldOrigins origins;  // Of its fields.
  std::string folder;    // What `base` and `replay` are relative to.
  // As in ConfigOverrides, for all variants.
  std::vector<std::string> worker_command = {};
};

// NotFound: the file cannot be read. InvalidArgument: all problems, one in a
// line, as "file:line:column: field path: value; what is required".
absl::StatusOr<ExperimentSource> LoadExperiment(const std::string& path);

// What LoadExperiment() checks beyond the grammar: the same errors.
absl::Status CheckExperiment(const experiment::Experiment& experiment,
                             const FieldOrigins& origins);

// Of an experiment or a variant: letters, digits, '-', '_' and '.', not first;
// at most kNameMax of them, because folders are named so.
inline constexpr size_t kNameMax = 100;
bool IsExperimentName(absl::string_view name);

}  // namespace slackline
