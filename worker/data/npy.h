// NumPy arrays in files, format versions 1.0 to 3.0
// (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct NpyFiles {
  // An example in each element of the first dimension. Two dimensions:
  // [examples, numbers]; three or four: images, see ImageDimensionsOf().
  std::string inputs;
  std::string labels;  // One dimension.
};

// Reads both, plain or gzip: arrays in C order of unsigned bytes, signed
// integers of 1, 2, 4 or 8 bytes, and floats of 4 or 8, little-endian. Inputs
// of unsigned bytes count as 0 to 1. InvalidArgument or DataLoss name file,
// value and bound; NotFound the file.
absl::StatusOr<RawData> ReadNpy(const NpyFiles& files);

}  // namespace slackline
