// The tables of parameters that somebody else owns, for implementations of
// ParameterMemory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/optimizer.pb.h"
#include "proto/view.pb.h"

namespace slackline {

// One parameter of a model.
struct TableSpec {
  std::string name;            // Unique in the model.
  std::vector<int64_t> shape;  // Each at least 1; empty for one number.
  // What the parameter is at clock 0; a function of train.seed and the name.
  wire::Initializer initializer;
  // The rule that updates it, with its own learning rate; none: the config's.
  // The same on all workers. The config's schedule holds for all parameters.
  std::optional<config::Optimizer> optimizer = std::nullopt;
};

// One for each, in their order. InvalidArgument names the parameter, and what
// is wrong with its name, its shape or its optimizer.
absl::StatusOr<std::vector<wire::Table>> MakeTables(
    const std::vector<TableSpec>& parameters);

}  // namespace slackline
