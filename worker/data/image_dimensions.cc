#include "worker/data/image_dimensions.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int64_t kSideMax = 4096;

bool MayBeChannels(int64_t size) { return size == 1 || size == 3 || size == 4; }

constexpr char kFourDimensions[] =
    "[count, channels, rows, columns] or [count, rows, columns, channels]";

}  // namespace

std::string DimensionsText(absl::Span<const int64_t> dimensions) {
  return absl::StrJoin(dimensions, "x");
}

absl::StatusOr<ImageDimensions> ImageDimensionsOf(
    absl::Span<const int64_t> dimensions) {
  const std::string size =
      absl::StrCat("its size is ", DimensionsText(dimensions));
  ImageDimensions image;
  if (dimensions.size() == 3) {
    image.shape = {
        .channels = 1, .rows = dimensions[1], .columns = dimensions[2]};
  } else {
    SL_CHECK(dimensions.size() == 4, size);
    const bool first = MayBeChannels(dimensions[1]);
    image.channels_last = MayBeChannels(dimensions[3]);
    if (!first && !image.channels_last) {
      return absl::InvalidArgumentError(absl::StrCat(
          size, ", and four dimensions are ", kFourDimensions,
          " with 1, 3 or 4 channels; store one channel as [count, rows, "
          "columns]"));
    }
    if (first && image.channels_last) {
      return absl::InvalidArgumentError(absl::StrCat(
          size, ", and both ", dimensions[1], " and ", dimensions[3],
          " could be the channels of ", kFourDimensions,
          "; store one channel as [count, rows, columns], and more channels "
          "with at least 5 rows and columns"));
    }
    image.shape = image.channels_last ? ImageShape{.channels = dimensions[3],
                                                   .rows = dimensions[1],
                                                   .columns = dimensions[2]}
                                      : ImageShape{.channels = dimensions[1],
                                                   .rows = dimensions[2],
                                                   .columns = dimensions[3]};
  }
  const ImageShape& shape = image.shape;
  if (shape.rows < 1 || shape.rows > kSideMax || shape.columns < 1 ||
      shape.columns > kSideMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        size, "; rows and columns must be in [1, ", kSideMax, "]"));
  }
  return image;
}

}  // namespace slackline
