// The tables of parameters that somebody else owns, for implementations of
// ParameterMemory.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/view.pb.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

// One for each, in their order. InvalidArgument names the parameter, and what
// is wrong with its name, its shape or its optimizer.
absl::StatusOr<std::vector<wire::Table>> MakeTables(
    const std::vector<TableSpec>& parameters);

}  // namespace slackline
