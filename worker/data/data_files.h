// Which files a data set is read from.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"

namespace slackline {

// The file is one of these, each with how its name may end.
struct DataFile {
  std::string field;               // "data.csv.train".
  std::vector<std::string> names;  // Below the data folder, in this order.
};

// All that the data need; nothing for those that are generated.
std::vector<DataFile> DataFilesOf(const config::Data& data);

// The path of `file` in `data_dir`: the first name that is there. NotFound says
// which are not, and what to do.
absl::StatusOr<std::string> FindDataFile(const DataFile& file,
                                         const std::string& data_dir);

}  // namespace slackline
