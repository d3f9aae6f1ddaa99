// What the examples of a data set look like, as its files say.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"

namespace slackline {

// 0x0x0 for inputs that are no images.
struct ImageShape {
  int64_t channels = 0;
  int64_t rows = 0;
  int64_t columns = 0;

  bool is_image() const { return channels > 0; }
  bool operator==(const ImageShape&) const = default;
};

struct DataShape {
  int64_t features = 0;  // Numbers per input. At least 1.
  // Labels are in [0, classes). 0: they are real numbers.
  int32_t classes = 0;
  // Of inputs in this order: channel, row, column. Its product is `features`.
  ImageShape image;
};

// "1x28x28", or "784 numbers" without images.
inline std::string InputText(const DataShape& shape) {
  if (!shape.image.is_image())
    return absl::StrCat(shape.features,
                        shape.features == 1 ? " number" : " numbers");
  return absl::StrCat(shape.image.channels, "x", shape.image.rows, "x",
                      shape.image.columns);
}

}  // namespace slackline
