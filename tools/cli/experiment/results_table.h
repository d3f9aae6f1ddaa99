// The results of an experiment, for people.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace slackline {

// Reads FOLDER/data/results.json, which the report computes: a line for each
// variant, with mean and 95 % interval over its seeds. NotFound: there is none;
// DataLoss: it is not of that form.
absl::StatusOr<std::string> ResultsTable(const std::string& folder);

}  // namespace slackline
