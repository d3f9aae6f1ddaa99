// A generated task in the files and sizes of MNIST, for machines that have
// neither the data nor a network. It is not MNIST, and says so.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace slackline {

// A folder with this file holds generated data.
inline constexpr char kStandInMarker[] = "STAND-IN.txt";

struct StandInOptions {
  uint64_t seed = 1;
  int64_t train_examples = 60000;  // At least 1.
  int64_t test_examples = 10000;   // At least 1.
};
// Writes the four plain IDX files and the marker into `folder`, which is
// created if need be: ten classes of 28x28 pictures, each a smooth random
// pattern of its class that is shifted, faded and overlaid with noise. A pure
// function of the options. An earlier stand-in is overwritten; AlreadyExists if
// the folder holds such files, plain or .gz, without the marker: they may be
// the real data.
absl::Status WriteStandInMnist(const std::string& folder,
                               const StandInOptions& options);

}  // namespace slackline
