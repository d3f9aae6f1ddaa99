// IDX files of pictures and labels, the format of MNIST
// (http://yann.lecun.com/exdb/mnist, "File formats"): two zero bytes, the type
// of the numbers, how many dimensions, their sizes, then the numbers; all
// big-endian.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct IdxFiles {
  // Unsigned bytes of 3 or 4 dimensions: see ImageDimensionsOf().
  std::string images;
  // Unsigned bytes or 32-bit integers of one dimension.
  std::string labels;
};

// Reads both, plain or gzip. InvalidArgument or DataLoss name file, offset,
// value and bound; NotFound the file.
absl::StatusOr<RawData> ReadIdx(const IdxFiles& files);

}  // namespace slackline
