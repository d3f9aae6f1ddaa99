// `slackline data`: gets training data. Each returns its exit code.
#pragma once

#include <string>

namespace slackline {

struct DataOptions {
  std::string data_dir;
  bool json = false;
};
// An empty `data_dir` is the cache.
int FetchDataSet(const std::string& name, const DataOptions& options);
int WriteStandIn(const DataOptions& options);

}  // namespace slackline
