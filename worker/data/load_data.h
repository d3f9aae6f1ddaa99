// The training and test data that a config names.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/data/data_split.h"

namespace slackline {

// For `model`, which says whether labels are classes or real numbers. Relative
// paths of the config are below `data_dir`. NotFound names the paths that were
// tried and what to do; InvalidArgument: training and test data do not belong
// together, or the model does not take such data; for the other errors see the
// readers.
absl::StatusOr<DataSplit> LoadData(const config::Data& data,
                                   const config::Model& model,
                                   const std::string& data_dir);

}  // namespace slackline
