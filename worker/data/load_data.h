// The training and test data that a config names.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/data/dataset.h"

namespace slackline {

struct DataSplit {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  std::string description;  // For people; says so when the data are a stand-in.
};

// Relative paths of the config are below `data_dir`. NotFound names the paths
// that were tried and what to do; for the other errors see the readers.
// Training and test inputs of different size are InvalidArgument.
absl::StatusOr<DataSplit> LoadData(const config::Data& data,
                                   const std::string& data_dir);

}  // namespace slackline
