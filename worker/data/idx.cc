#include "worker/data/idx.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/data/gzip_reader.h"
#include "worker/data/image_dimensions.h"

namespace slackline {
namespace {

constexpr uint8_t kIdxUnsignedByte = 0x08;
constexpr uint8_t kInt32 = 0x0c;

// What the format calls its types.
std::string TypeText(uint8_t type) {
  constexpr std::pair<uint8_t, const char*> kNames[] = {
      {kIdxUnsignedByte, "unsigned bytes"},
      {0x09, "signed bytes"},
      {0x0b, "16-bit integers"},
      {kInt32, "32-bit integers"},
      {0x0d, "floats"},
      {0x0e, "doubles"}};
  for (const auto& [known, name] : kNames) {
    if (known == type) return name;
  }
  return "an unknown type";
}

absl::Status BadIdx(const GzipReader& reader, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": ", what));
}

uint32_t BigEndian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 |
         uint32_t{bytes[2]} << 8 | bytes[3];
}

absl::StatusOr<uint32_t> ReadNumber(GzipReader* reader,
                                    absl::string_view name) {
  std::array<uint8_t, 4> bytes{};
  SL_ASSIGN_OR_RETURN(const int64_t got,
                      reader->Read(bytes.data(), bytes.size()));
  if (got != static_cast<int64_t>(bytes.size())) {
    return BadIdx(*reader,
                  absl::StrCat("ends at offset ", reader->offset(), " inside ",
                               name, " of its header; fetch the file again"));
  }
  return BigEndian(bytes.data());
}

struct IdxHeader {
  uint8_t type = 0;
  std::vector<int64_t> dimensions;
};

// `content` is "images" or "labels", of `types` and with `dimensions_min` to
// `dimensions_max`; `allowed` says the same for people.
struct Wanted {
  absl::string_view content;
  std::vector<uint8_t> types;
  int dimensions_min = 1;
  int dimensions_max = 1;
  absl::string_view allowed;
};

absl::StatusOr<IdxHeader> ReadIdxHeader(GzipReader* reader,
                                        const Wanted& wanted) {
  SL_ASSIGN_OR_RETURN(const uint32_t magic,
                      ReadNumber(reader, "the magic number"));
  const std::string starts = absl::StrCat("starts with magic number 0x",
                                          absl::Hex(magic, absl::kZeroPad8));
  if (magic >> 16 != 0) {
    return BadIdx(*reader,
                  absl::StrCat(starts,
                               ", and IDX files with two zero bytes; is "
                               "this another kind of file?"));
  }
  IdxHeader header;
  header.type = static_cast<uint8_t>(magic >> 8 & 0xff);
  const auto count = static_cast<int>(magic & 0xff);
  if (count < wanted.dimensions_min || count > wanted.dimensions_max ||
      std::find(wanted.types.begin(), wanted.types.end(), header.type) ==
          wanted.types.end()) {
    return BadIdx(
        *reader, absl::StrCat(starts, ": ", TypeText(header.type), " in ",
                              count, count == 1 ? " dimension" : " dimensions",
                              ", but ", wanted.content, " are ", wanted.allowed,
                              "; are the images' and labels' files mixed up?"));
  }
  for (int i = 0; i < count; ++i) {
    SL_ASSIGN_OR_RETURN(
        const uint32_t size,
        ReadNumber(reader,
                   i == 0 ? "the count" : absl::StrCat("dimension ", i + 1)));
    header.dimensions.push_back(size);
  }
  if (header.dimensions[0] == 0) {
    return BadIdx(*reader, absl::StrCat("holds no ", wanted.content,
                                        ", at least 1 is required"));
  }
  return header;
}

absl::StatusOr<std::vector<uint8_t>> ReadBody(GzipReader* reader, int64_t bytes,
                                              absl::string_view content) {
  std::vector<uint8_t> body;
  SL_RETURN_IF_ERROR(
      reader->ReadRest(bytes, content, [&](absl::Span<const uint8_t> piece) {
        if (body.empty()) body.reserve(static_cast<size_t>(bytes));
        body.insert(body.end(), piece.begin(), piece.end());
      }));
  return body;
}

// Into everything of `data` but the labels. Returns the number of images.
absl::StatusOr<int64_t> ReadImages(const std::string& path, RawData* data) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_ASSIGN_OR_RETURN(
      const IdxHeader header,
      ReadIdxHeader(&reader, {.content = "images",
                              .types = {kIdxUnsignedByte},
                              .dimensions_min = 3,
                              .dimensions_max = 4,
                              .allowed = "unsigned bytes in 3 dimensions "
                                         "(0x00000803) or 4 (0x00000804)"}));
  const absl::StatusOr<ImageDimensions> image =
      ImageDimensionsOf(header.dimensions);
  if (!image.ok()) return Annotate(image.status(), path);
  data->image = image->shape;
  data->features =
      data->image.channels * data->image.rows * data->image.columns;
  const int64_t count = header.dimensions[0];
  // At most 2^32 images of 2^26 bytes.
  SL_ASSIGN_OR_RETURN(
      std::vector<uint8_t> pixels,
      ReadBody(&reader, count * data->features,
               absl::StrCat(
                   count, " images of ",
                   DimensionsText(
                       absl::MakeConstSpan(header.dimensions).subspan(1)))));
  if (image->channels_last) PutChannelsFirst(data->image, &pixels);
  data->inputs =
      CodedRows{.codes = std::move(pixels), .values = {ByteValues()}};
  data->source = path;
  data->description = absl::StrCat(count, " images from ", path);
  return count;
}

absl::Status ReadIdxLabels(const std::string& path, RawData* data) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_ASSIGN_OR_RETURN(
      const IdxHeader header,
      ReadIdxHeader(&reader,
                    {.content = "labels",
                     .types = {kIdxUnsignedByte, kInt32},
                     .allowed = "unsigned bytes (0x00000801) or 32-bit "
                                "integers (0x00000c01) in 1 dimension"}));
  const int64_t count = header.dimensions[0];
  const int64_t size = header.type == kInt32 ? 4 : 1;
  const int64_t start = reader.offset();
  SL_ASSIGN_OR_RETURN(
      const std::vector<uint8_t> body,
      ReadBody(&reader, count * size, absl::StrCat(count, " labels")));
  data->labels.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    data->labels.push_back(
        size == 1 ? body[i]
                  : static_cast<int32_t>(BigEndian(body.data() + 4 * i)));
  }
  data->label_place = [path, start, size](int64_t row) {
    return absl::StrCat(path, ", offset ", start + row * size);
  };
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RawData> ReadIdx(const IdxFiles& files) {
  RawData data;
  SL_ASSIGN_OR_RETURN(const int64_t images, ReadImages(files.images, &data));
  SL_RETURN_IF_ERROR(ReadIdxLabels(files.labels, &data));
  if (images != static_cast<int64_t>(data.labels.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.images, " holds ", images, " images, but ", files.labels, " ",
        data.labels.size(), " labels; fetch both files again"));
  }
  return data;
}

}  // namespace slackline
