// `slackline data`: gets training data. Each returns its exit code.
#pragma once

#include <string>

namespace slackline {

// An empty `data_dir` is the cache.
int FetchDataSet(const std::string& name, const std::string& data_dir);
int WriteStandIn(const std::string& data_dir);

}  // namespace slackline
