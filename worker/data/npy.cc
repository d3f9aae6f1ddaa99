#include "worker/data/npy.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/status.h"
#include "worker/data/gzip_reader.h"
#include "worker/data/image_dimensions.h"
#include "worker/data/line_reader.h"

namespace slackline {
namespace {

constexpr int64_t kHeaderBytesMax = 1 << 16;
constexpr size_t kDimensionsMax = 32;  // NumPy's.
constexpr int64_t kFeaturesMax = 1 << 26;
constexpr int64_t kExamplesMax = int64_t{1} << 32;

absl::Status BadNpy(const GzipReader& reader, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(reader.path(), ": ", what));
}

// What the dictionary in the file's header says.
struct NpyHeader {
  std::string type;  // As in "<f4".
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Takes values off the front of a Python literal as NumPy writes it.
class Literal {
 public:
  explicit Literal(absl::string_view text) : rest_(text) {}

  bool Take(absl::string_view token) {
    rest_ = absl::StripLeadingAsciiWhitespace(rest_);
    return absl::ConsumePrefix(&rest_, token);
  }
  bool AtEnd() const { return absl::StripAsciiWhitespace(rest_).empty(); }
  std::optional<std::string> String() {
    const char* const quote = Take("'") ? "'" : Take("\"") ? "\"" : nullptr;
    if (quote == nullptr) return std::nullopt;
    const size_t end = rest_.find(*quote);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::optional<bool> Bool() {
    if (Take("True")) return true;
    if (Take("False")) return false;
    return std::nullopt;
  }
  std::optional<std::vector<int64_t>> Tuple() {
    if (!Take("(")) return std::nullopt;
    std::vector<int64_t> sizes;
    while (!Take(")")) {
      rest_ = absl::StripLeadingAsciiWhitespace(rest_);
      size_t digits = 0;
      while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits]))
        ++digits;
      int64_t size = 0;
      if (!absl::SimpleAtoi(rest_.substr(0, digits), &size) ||
          sizes.size() >= kDimensionsMax)
        return std::nullopt;
      rest_.remove_prefix(digits);
      sizes.push_back(size);
      if (!Take(",")) {
        if (!Take(")")) return std::nullopt;
        break;
      }
    }
    return sizes;
  }

 private:
  absl::string_view rest_;
};

// Nothing if the text is no such dictionary.
std::optional<NpyHeader> ParseNpyHeader(absl::string_view text) {
  Literal literal(text);
  if (!literal.Take("{")) return std::nullopt;
  std::optional<std::string> type;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
  while (!literal.Take("}")) {
    const std::optional<std::string> key = literal.String();
    if (!key.has_value() || !literal.Take(":")) return std::nullopt;
    if (*key == "descr" && !type.has_value()) {
      type = literal.String();
      if (!type.has_value()) return std::nullopt;
    } else if (*key == "fortran_order" && !fortran_order.has_value()) {
      fortran_order = literal.Bool();
      if (!fortran_order.has_value()) return std::nullopt;
    } else if (*key == "shape" && !shape.has_value()) {
      shape = literal.Tuple();
      if (!shape.has_value()) return std::nullopt;
    } else {
      return std::nullopt;
    }
    if (!literal.Take(",")) {
      if (!literal.Take("}")) return std::nullopt;
      break;
    }
  }
  if (!literal.AtEnd() || !type.has_value() || !fortran_order.has_value() ||
      !shape.has_value())
    return std::nullopt;
  return NpyHeader{.type = *type,
                   .fortran_order = *fortran_order,
                   .shape = *std::move(shape)};
}

// `bytes` of the header, whole.
absl::StatusOr<std::string> ReadHeaderBytes(GzipReader* reader, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  SL_ASSIGN_OR_RETURN(const int64_t got, reader->Read(text.data(), bytes));
  if (got == bytes) return text;
  return BadNpy(*reader, absl::StrCat("ends at offset ", reader->offset(),
                                      " inside its header; save it again"));
}

absl::StatusOr<NpyHeader> ReadNpyHeader(GzipReader* reader) {
  SL_ASSIGN_OR_RETURN(const std::string start, ReadHeaderBytes(reader, 8));
  if (!absl::StartsWith(start, "\x93NUMPY")) {
    return BadNpy(
        *reader,
        absl::StrCat("starts with ", Shown(start),
                     absl::StartsWith(start, "PK")
                         ? ", which is an archive (.npz); save each "
                           "array in a file of its own, with numpy.save"
                         : ", and files of NumPy start with \\x93NUMPY; "
                           "write them with numpy.save"));
  }
  const int major = static_cast<uint8_t>(start[6]);
  if (major < 1 || major > 3) {
    return BadNpy(*reader,
                  absl::StrCat("has format version ", major, ".",
                               static_cast<int>(static_cast<uint8_t>(start[7])),
                               ", and 1.0 to 3.0 are read"));
  }
  SL_ASSIGN_OR_RETURN(const std::string size,
                      ReadHeaderBytes(reader, major == 1 ? 2 : 4));
  int64_t bytes = 0;
  for (size_t i = size.size(); i-- > 0;)
    bytes = bytes << 8 | static_cast<uint8_t>(size[i]);
  if (bytes > kHeaderBytesMax) {
    return BadNpy(*reader,
                  absl::StrCat("has a header of ", bytes, " bytes, at most ",
                               kHeaderBytesMax, " are read"));
  }
  SL_ASSIGN_OR_RETURN(const std::string text, ReadHeaderBytes(reader, bytes));
  std::optional<NpyHeader> header = ParseNpyHeader(text);
  if (!header.has_value()) {
    return BadNpy(
        *reader, absl::StrCat("has the header ", Shown(text),
                              ", which does not describe one array of numbers; "
                              "save numbers, not objects or records"));
  }
  if (header->fortran_order) {
    return BadNpy(*reader,
                  "is in Fortran's order; save numpy.ascontiguousarray(array)");
  }
  return *std::move(header);
}

// Appends the numbers of type `Number` in `piece`.
template <typename Number, typename To>
void Append(absl::Span<const uint8_t> piece, std::vector<To>* to) {
  for (size_t at = 0; at + sizeof(Number) <= piece.size();
       at += sizeof(Number)) {
    Number number;
    std::memcpy(&number, piece.data() + at, sizeof(number));
    to->push_back(static_cast<To>(number));
  }
}

template <typename To>
struct NumberType {
  const char* name;  // As NumPy writes it.
  int64_t bytes;
  void (*append)(absl::Span<const uint8_t> piece, std::vector<To>* to);
};

constexpr char kUnsignedByte[] = "|u1";

template <typename To>
absl::StatusOr<NumberType<To>> TypeOf(const GzipReader& reader,
                                      const NpyHeader& header) {
  static constexpr NumberType<To> kTypes[] = {
      {kUnsignedByte, 1, &Append<uint8_t, To>},
      {"|i1", 1, &Append<int8_t, To>},
      {"<i2", 2, &Append<int16_t, To>},
      {"<i4", 4, &Append<int32_t, To>},
      {"<i8", 8, &Append<int64_t, To>},
      {"<f4", 4, &Append<float, To>},
      {"<f8", 8, &Append<double, To>}};
  for (const NumberType<To>& type : kTypes) {
    if (header.type == type.name) return type;
  }
  return BadNpy(
      reader,
      absl::StrCat("has numbers of type ", Shown(header.type),
                   "; |u1, |i1, <i2, <i4, <i8, <f4 and <f8 are read, as "
                   "array.astype('<f4') makes them"));
}

// The rest of the file.
template <typename To>
absl::StatusOr<std::vector<To>> ReadNumbers(GzipReader* reader,
                                            const NpyHeader& header,
                                            int64_t count) {
  SL_ASSIGN_OR_RETURN(const NumberType<To> type, TypeOf<To>(*reader, header));
  std::vector<To> numbers;
  SL_RETURN_IF_ERROR(reader->ReadRest(
      count * type.bytes,
      absl::StrCat("an array of ", DimensionsText(header.shape)),
      [&](absl::Span<const uint8_t> piece) {
        if (numbers.empty()) numbers.reserve(static_cast<size_t>(count));
        type.append(piece, &numbers);
      }));
  return numbers;
}

absl::Status CheckExamples(const GzipReader& reader, const NpyHeader& header) {
  const int64_t examples = header.shape.empty() ? 0 : header.shape[0];
  if (examples >= 1 && examples <= kExamplesMax) return absl::OkStatus();
  return BadNpy(reader, absl::StrCat("holds ", examples, " examples, 1 to ",
                                     kExamplesMax, " are required"));
}

// Sets `features` and `image` of `data`. Whether channels come last.
absl::StatusOr<bool> ReadShape(const GzipReader& reader,
                               const NpyHeader& header, RawData* data) {
  SL_RETURN_IF_ERROR(CheckExamples(reader, header));
  const size_t dimensions = header.shape.size();
  if (dimensions == 3 || dimensions == 4) {
    const absl::StatusOr<ImageDimensions> image =
        ImageDimensionsOf(header.shape);
    if (!image.ok()) return Annotate(image.status(), reader.path());
    data->image = image->shape;
    data->features =
        data->image.channels * data->image.rows * data->image.columns;
    return image->channels_last;
  }
  if (dimensions != 2) {
    return BadNpy(
        reader, absl::StrCat("has ", dimensions,
                             dimensions == 1 ? " dimension" : " dimensions",
                             "; inputs are [examples, numbers], or images in 3 "
                             "or 4 dimensions"));
  }
  data->features = header.shape[1];
  if (data->features < 1 || data->features > kFeaturesMax) {
    return BadNpy(reader, absl::StrCat("has ", data->features,
                                       " numbers per example; 1 "
                                       "to ",
                                       kFeaturesMax, " are allowed"));
  }
  return false;
}

template <typename Number>
absl::Status CheckFinite(const GzipReader& reader,
                         const std::vector<Number>& numbers,
                         int64_t per_example) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (std::isfinite(numbers[i])) continue;
    return BadNpy(
        reader, absl::StrCat("example ", static_cast<int64_t>(i) / per_example,
                             " has a number that is not finite, ", numbers[i],
                             "; remove such examples"));
  }
  return absl::OkStatus();
}

// Into everything of `data` but the labels. Returns the number of examples.
absl::StatusOr<int64_t> ReadInputs(const std::string& path, RawData* data) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(&reader));
  SL_ASSIGN_OR_RETURN(const bool channels_last,
                      ReadShape(reader, header, data));
  const int64_t examples = header.shape[0];
  const int64_t count = examples * data->features;
  if (header.type == kUnsignedByte) {
    CodedRows rows{.codes = {}, .values = {ByteValues()}};
    SL_ASSIGN_OR_RETURN(rows.codes,
                        ReadNumbers<uint8_t>(&reader, header, count));
    if (channels_last) PutChannelsFirst(data->image, &rows.codes);
    data->inputs = std::move(rows);
  } else {
    DenseRows rows;
    SL_ASSIGN_OR_RETURN(rows.values,
                        ReadNumbers<float>(&reader, header, count));
    SL_RETURN_IF_ERROR(CheckFinite(reader, rows.values, data->features));
    if (channels_last) PutChannelsFirst(data->image, &rows.values);
    data->inputs = std::move(rows);
  }
  data->source = path;
  data->description = absl::StrCat(
      examples, data->image.is_image() ? " images from " : " examples from ",
      path);
  return examples;
}

absl::Status ReadNpyLabels(const std::string& path, RawData* data) {
  SL_ASSIGN_OR_RETURN(GzipReader reader, GzipReader::Open(path));
  SL_ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(&reader));
  SL_RETURN_IF_ERROR(CheckExamples(reader, header));
  if (header.shape.size() != 1) {
    return BadNpy(reader,
                  absl::StrCat("has the size ", DimensionsText(header.shape),
                               "; labels have one dimension, as "
                               "array.ravel() makes it"));
  }
  SL_ASSIGN_OR_RETURN(data->labels,
                      ReadNumbers<double>(&reader, header, header.shape[0]));
  SL_RETURN_IF_ERROR(CheckFinite(reader, data->labels, 1));
  data->label_place = [path](int64_t row) {
    return absl::StrCat(path, "[", row, "]");
  };
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RawData> ReadNpy(const NpyFiles& files) {
  RawData data;
  SL_ASSIGN_OR_RETURN(const int64_t examples, ReadInputs(files.inputs, &data));
  SL_RETURN_IF_ERROR(ReadNpyLabels(files.labels, &data));
  if (examples != static_cast<int64_t>(data.labels.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(files.inputs, " holds ", examples, " examples, but ",
                     files.labels, " ", data.labels.size(), " labels"));
  }
  return data;
}

}  // namespace slackline
