// RawData: examples as a reader found them in files, before it is known which
// class a label is and how inputs are normalised (data_split.h).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "worker/data/dataset.h"

namespace slackline {

struct RawData {
  Inputs inputs;  // Bytes count as 0 to 1. Nothing else is done to them yet.
  int64_t features = 0;
  ImageShape image;
  // Of each example: what stands in the file, a finite number.
  std::vector<double> labels;
  // "data.txt:7", where the label of an example stands.
  std::function<std::string(int64_t row)> label_place;
  std::string source;       // The file with the inputs, or what made them.
  std::string description;  // "60000 images from mnist/train-images".
};

// What bytes are before any normalisation.
inline std::array<float, 256> ByteValues() {
  std::array<float, 256> values{};
  for (size_t x = 0; x < values.size(); ++x)
    values[x] = static_cast<float>(x) / 255.0f;
  return values;
}

}  // namespace slackline
