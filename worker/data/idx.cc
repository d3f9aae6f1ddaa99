#include "worker/data/idx.h"

#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/gzip_reader.h"

namespace slackline {
namespace {

constexpr uint32_t kImagesMagic = 0x803;  // Unsigned bytes, three dimensions.
constexpr uint32_t kLabelsMagic = 0x801;  // Unsigned bytes, one dimension.

absl::Status Bad(const GzipReader& reader, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": ", what));
}

absl::StatusOr<uint32_t> ReadNumber(GzipReader* reader,
                                    absl::string_view name) {
  std::array<uint8_t, 4> bytes{};
  SL_ASSIGN_OR_RETURN(const int64_t got,
                      reader->Read(bytes.data(), bytes.size()));
  if (got != static_cast<int64_t>(bytes.size())) {
    return Bad(*reader,
               absl::StrCat("ends at offset ", reader->offset(), " inside ",
                            name, " of its header; fetch the file again"));
  }
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::Status CheckMagic(GzipReader* reader, uint32_t want,
                        absl::string_view content) {
  SL_ASSIGN_OR_RETURN(const uint32_t magic,
                      ReadNumber(reader, "the magic number"));
  if (magic == want) return absl::OkStatus();
  return Bad(*reader,
             absl::StrCat("starts with magic number 0x",
                          absl::Hex(magic, absl::kZeroPad8), ", IDX ", content,
                          " start with 0x", absl::Hex(want, absl::kZeroPad8),
                          "; are the images' and labels' files mixed up?"));
}

// Reads the rest of the file, which has to be `bytes` long.
absl::StatusOr<std::vector<uint8_t>> ReadBody(GzipReader* reader, int64_t bytes,
                                              absl::string_view content) {
  if (bytes > reader->bytes_max()) {
    return Bad(*reader,
               absl::StrCat("its header promises ", content, ", ", bytes,
                            " bytes, more than a file of this size can hold; "
                            "fetch the file again"));
  }
  std::vector<uint8_t> body(static_cast<size_t>(bytes));
  SL_ASSIGN_OR_RETURN(const int64_t got, reader->Read(body.data(), bytes));
  uint8_t beyond = 0;
  SL_ASSIGN_OR_RETURN(const int64_t more, reader->Read(&beyond, 1));
  if (got != bytes || more != 0) {
    return Bad(*reader,
               absl::StrCat("its header promises ", content, ", ", bytes,
                            " bytes, but ",
                            more != 0 ? "more" : absl::StrCat("only ", got),
                            " follow; fetch the file again"));
  }
  return body;
}

struct Images {
  int64_t count = 0;
  int64_t features = 0;
  std::vector<uint8_t> pixels;
};

absl::StatusOr<Images> ReadImages(const std::string& path) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_RETURN_IF_ERROR(CheckMagic(&reader, kImagesMagic, "images"));
  SL_ASSIGN_OR_RETURN(const uint32_t count, ReadNumber(&reader, "the count"));
  SL_ASSIGN_OR_RETURN(const uint32_t rows,
                      ReadNumber(&reader, "the number of rows"));
  SL_ASSIGN_OR_RETURN(const uint32_t columns,
                      ReadNumber(&reader, "the number of columns"));
  const std::string content =
      absl::StrCat(count, " images of ", rows, "x", columns);
  if (count == 0) return Bad(reader, "holds no images, at least 1 is required");
  if (rows < 1 || rows > 4096 || columns < 1 || columns > 4096) {
    return Bad(reader, absl::StrCat("its header promises ", content,
                                    "; rows and columns must be in [1, 4096]"));
  }
  Images images{
      .count = count, .features = int64_t{rows} * columns, .pixels = {}};
  SL_ASSIGN_OR_RETURN(
      images.pixels,
      ReadBody(&reader, images.count * images.features, content));
  return images;
}

absl::StatusOr<std::vector<int32_t>> ReadLabels(const std::string& path) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_RETURN_IF_ERROR(CheckMagic(&reader, kLabelsMagic, "labels"));
  SL_ASSIGN_OR_RETURN(const uint32_t count, ReadNumber(&reader, "the count"));
  const int64_t start = reader.offset();
  SL_ASSIGN_OR_RETURN(const std::vector<uint8_t> body,
                      ReadBody(&reader, count, absl::StrCat(count, " labels")));
  for (size_t i = 0; i < body.size(); ++i) {
    if (body[i] >= kIdxClasses) {
      return Bad(reader,
                 absl::StrCat("label ", body[i], " at offset ", start + i,
                              " is outside [0, ", kIdxClasses, ")"));
    }
  }
  return std::vector<int32_t>(body.begin(), body.end());
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Dataset>> ReadIdx(const IdxFiles& files) {
  SL_ASSIGN_OR_RETURN(Images images, ReadImages(files.images));
  SL_ASSIGN_OR_RETURN(std::vector<int32_t> labels, ReadLabels(files.labels));
  if (images.count != static_cast<int64_t>(labels.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.images, " holds ", images.count, " images, but ", files.labels,
        " ", labels.size(), " labels; fetch both files again"));
  }
  CodedRows rows{.codes = std::move(images.pixels), .value = {}};
  for (size_t x = 0; x < rows.value.size(); ++x) {
    rows.value[x] = (static_cast<float>(x) / 255.0f - 0.1307f) / 0.3081f;
  }
  return std::make_shared<const Dataset>(
      Dataset::Options{.features = images.features,
                       .classes = kIdxClasses,
                       .description = absl::StrCat(
                           images.count, " images from ", files.images)},
      std::move(rows), std::move(labels));
}

}  // namespace slackline
