// What the config may say about the model. Free of LibTorch, so that everybody
// who reads a config can check it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"
#include "worker/model/data_shape.h"

namespace slackline {

// LeNet reads pictures of so many pixels in each direction.
inline constexpr int64_t kLenetSide = 28;

// Adds what is wrong with the model itself.
void CheckModel(const config::Model& model, const ConfigProblems& problems);

// Adds where the model does not fit what the config says about its data.
// `problems` is the whole config.
void CheckModelFitsData(const config::Model& model, const config::Data& data,
                        const ConfigProblems& problems);

// The same for what the data turn out to be. InvalidArgument names the model,
// what it takes, and what `source` (a file) has.
absl::Status CheckModelTakes(const config::Model& model, const DataShape& shape,
                             absl::string_view source);

}  // namespace slackline
