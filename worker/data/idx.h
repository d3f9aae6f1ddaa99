// IDX files of pictures and labels, the format of MNIST
// (http://yann.lecun.com/exdb/mnist, "File formats"): big-endian header, then
// bytes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace slackline {

inline constexpr int32_t kIdxClasses = 10;

struct IdxFiles {
  std::string images;  // Magic 0x00000803: count, rows, columns, pixels.
  std::string labels;  // Magic 0x00000801: count, labels in [0, kIdxClasses).
};

// Reads both, plain or gzip. Pixels are normalised with MNIST's usual mean and
// deviation, (x / 255 - 0.1307) / 0.3081. InvalidArgument or DataLoss name
// file, offset, value and bound; NotFound the file.
absl::StatusOr<std::shared_ptr<const Dataset>> ReadIdx(const IdxFiles& files);

}  // namespace slackline
