// Which dimensions of an array of examples are channels, rows and columns.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/data_shape.h"

namespace slackline {

struct ImageDimensions {
  ImageShape shape;
  bool channels_last = false;  // In the file. In memory they come first.
};

// Of [count, rows, columns]: one channel; of [count, channels, rows, columns]
// and [count, rows, columns, channels], the one in which there are 1, 3 or 4
// channels. `dimensions` are 3 or 4 numbers. InvalidArgument: neither or both
// of them could be channels, or rows and columns are outside [1, 4096].
absl::StatusOr<ImageDimensions> ImageDimensionsOf(
    absl::Span<const int64_t> dimensions);

// "60000x28x28", for messages.
std::string DimensionsText(absl::Span<const int64_t> dimensions);

// Puts the channels of each image first that come last.
template <typename Number>
void PutChannelsFirst(const ImageShape& shape, std::vector<Number>* images) {
  const int64_t pixels = shape.rows * shape.columns;
  const int64_t size = pixels * shape.channels;
  std::vector<Number> image(static_cast<size_t>(size));
  const auto count = static_cast<int64_t>(images->size()) / size;
  for (int64_t i = 0; i < count; ++i) {
    Number* const at = images->data() + i * size;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      for (int64_t channel = 0; channel < shape.channels; ++channel)
        image[channel * pixels + pixel] = at[pixel * shape.channels + channel];
    }
    std::copy(image.begin(), image.end(), at);
  }
}

}  // namespace slackline
