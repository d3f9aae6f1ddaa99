#include "common/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/floats/half.h"
#include "common/io/atomic_file.h"
#include "common/io/sha256.h"
#include "common/shortened.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace slackline {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "tensors are written as they lie in memory; the format is little-endian");

constexpr char kMetadataKey[] = "__metadata__";
// The format's own limit for a header.
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr size_t kTypeBytesShown = 16;  // In errors.
constexpr size_t kBytesAtOnce = 1 << 20;

template <typename T>
absl::string_view BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Elements of a tensor of this shape; nothing if a size is below 0 or the bytes
// would not fit into 63 bits.
std::optional<int64_t> Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || __builtin_mul_overflow(elements, size, &elements))
      return std::nullopt;
  }
  if (elements > INT64_MAX / static_cast<int64_t>(sizeof(double)))
    return std::nullopt;
  return elements;
}

// Bytes of an element; 0: no type of the format.
size_t SizeOfType(absl::string_view type) {
  static constexpr std::pair<absl::string_view, size_t> kTypes[] = {
      {"BOOL", 1},    {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},
      {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2},    {"U32", 4}, {"I32", 4}, {"F32", 4},
      {"U64", 8},     {"I64", 8}, {"F64", 8}, {"C64", 8}};
  for (const auto& [name, size] : kTypes) {
    if (name == type) return size;
  }
  return 0;
}

absl::Status CheckHeadings(const std::string& path,
                           absl::Span<const TensorHeading> tensors) {
  std::set<absl::string_view> names;
  for (const TensorHeading& tensor : tensors) {
    const std::string where =
        absl::StrCat("write ", path, ": tensor '", tensor.name, "'");
    if (tensor.name == kMetadataKey || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": the name is taken; each tensor needs one of its own"));
    }
    const size_t size = SizeOfType(tensor.type);
    if (size == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": type is '", tensor.type,
          "', which is none of the format; F32, I64, BOOL are some"));
    }
    const std::optional<int64_t> elements = Elements(tensor.shape);
    if (tensor.bytes % size != 0 ||
        elements != static_cast<int64_t>(tensor.bytes / size)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": shape ", ShapeText(tensor.shape), " does not make ",
          tensor.bytes / size, " values; sizes of at least 0 are required"));
    }
  }
  return absl::OkStatus();
}

// Text that is not UTF-8 would make dump() throw; such bytes are replaced.
std::string JsonText(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status Corrupt(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      path, ": ", what, "; the file is damaged or not a safetensors file"));
}

absl::StatusOr<TensorPlace> ParsePlace(const std::string& path,
                                       const std::string& name,
                                       const nlohmann::json& json,
                                       uint64_t data_bytes) {
  const std::string tensor = absl::StrCat("tensor '", name, "'");
  const auto is_list_of_counts = [&json](const char* key) {
    return json.contains(key) && json[key].is_array() &&
           std::all_of(json[key].begin(), json[key].end(),
                       [](const nlohmann::json& value) {
                         return value.is_number_unsigned() &&
                                value.get<uint64_t>() <= INT64_MAX;
                       });
  };
  if (!json.is_object() || !json.contains("dtype") ||
      !json["dtype"].is_string() || !is_list_of_counts("shape") ||
      !is_list_of_counts("data_offsets") || json["data_offsets"].size() != 2) {
    return Corrupt(
        path,
        absl::StrCat(
            tensor,
            ": the header does not give dtype, shape and two data_offsets"));
  }
  TensorPlace place{name, json["dtype"].get<std::string>(),
                    json["shape"].get<std::vector<int64_t>>(),
                    json["data_offsets"][0].get<uint64_t>(),
                    json["data_offsets"][1].get<uint64_t>()};
  if (place.begin > place.end || place.end > data_bytes) {
    return Corrupt(
        path,
        absl::StrCat(tensor, ": bytes [", place.begin, ", ", place.end,
                     ") are not within the data's [0, ", data_bytes, ")"));
  }
  const size_t size = SizeOfType(place.type);
  const std::optional<int64_t> elements = Elements(place.shape);
  if (size != 0 && (!elements || static_cast<uint64_t>(*elements) * size !=
                                     place.end - place.begin)) {
    return Corrupt(
        path, absl::StrCat(tensor, ": shape ", ShapeText(place.shape), " of ",
                           Shortened(place.type, kTypeBytesShown),
                           " does not make the ", place.end - place.begin,
                           " bytes at offset ", place.begin));
  }
  return place;
}

absl::StatusOr<std::vector<TensorPlace>> ParsePlaces(
    const std::string& path, const nlohmann::json& header,
    uint64_t data_bytes) {
  std::vector<TensorPlace> places;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadataKey) continue;
    SL_ASSIGN_OR_RETURN(TensorPlace place,
                        ParsePlace(path, name, json, data_bytes));
    places.push_back(std::move(place));
  }
  // A tensor without elements lies before one that begins there.
  std::sort(places.begin(), places.end(),
            [](const TensorPlace& a, const TensorPlace& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  uint64_t offset = 0;
  for (const TensorPlace& place : places) {
    if (place.begin != offset) {
      return Corrupt(
          path,
          absl::StrCat("tensor '", place.name, "': starts at offset ",
                       place.begin, ", the tensors before it end at ", offset));
    }
    offset = place.end;
  }
  if (offset != data_bytes) {
    return Corrupt(path, absl::StrCat("the tensors end at offset ", offset,
                                      ", the data at ", data_bytes));
  }
  return places;
}

absl::StatusOr<TensorMetadata> ParseMetadata(const std::string& path,
                                             const nlohmann::json& header) {
  TensorMetadata metadata;
  if (!header.contains(kMetadataKey)) return metadata;
  const nlohmann::json& json = header[kMetadataKey];
  if (!json.is_object()) return Corrupt(path, "__metadata__ is not a map");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return Corrupt(path, absl::StrCat("__metadata__: the value of '", key,
                                        "' is not text"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Of tensors of whatever type.
absl::StatusOr<SafetensorsHeader> ParseHeader(const std::string& path,
                                              absl::string_view json,
                                              uint64_t data_bytes) {
  const auto header = nlohmann::json::parse(json.begin(), json.end(), nullptr,
                                            /*allow_exceptions=*/false);
  if (!header.is_object()) return Corrupt(path, "the header is not a JSON map");
  SafetensorsHeader result;
  SL_ASSIGN_OR_RETURN(result.metadata, ParseMetadata(path, header));
  SL_ASSIGN_OR_RETURN(result.tensors, ParsePlaces(path, header, data_bytes));
  return result;
}

absl::Status CheckFloat32(const std::string& path,
                          const std::vector<TensorPlace>& tensors) {
  for (const TensorPlace& tensor : tensors) {
    if (tensor.type == "F32") continue;
    return absl::UnimplementedError(
        absl::StrCat(path, ": tensor '", tensor.name, "': type ",
                     Shortened(tensor.type, kTypeBytesShown),
                     " is not supported, only F32 is; convert it first"));
  }
  return absl::OkStatus();
}

absl::Status ReadError(const std::string& path, absl::string_view attempt,
                       int error_number) {
  const std::string message = absl::StrCat(
      attempt, " ", path, ": ", std::generic_category().message(error_number));
  return error_number == ENOENT ? absl::NotFoundError(message)
                                : absl::UnavailableError(message);
}

// Of F16, BF16 or F64. False, with the value, if one is finite and beyond the
// largest float.
bool ExpandFloats(absl::string_view type, const std::byte* bytes,
                  size_t elements, float* out, double* too_large) {
  if (type == "F16" || type == "BF16") {
    ExpandHalf(type == "F16" ? HalfType::kFloat16 : HalfType::kBfloat16, bytes,
               elements, out);
    return true;
  }
  for (size_t i = 0; i < elements; ++i) {
    double value = 0;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    if (std::isfinite(value) &&
        std::fabs(value) > std::numeric_limits<float>::max()) {
      *too_large = value;
      return false;
    }
    out[i] = static_cast<float>(value);
  }
  return true;
}

}  // namespace

absl::StatusOr<std::string> MakeSafetensorsHeader(
    const std::string& path, absl::Span<const TensorHeading> tensors,
    const TensorMetadata& metadata) {
  SL_RETURN_IF_ERROR(CheckHeadings(path, tensors));
  // Not as an object of the JSON library: those that keep an order take time
  // with the square of the number of tensors.
  std::string text(kSafetensorsSizeBytes, '\0');
  text += '{';
  const char* comma = "";
  if (!metadata.empty()) {
    absl::StrAppend(&text, "\"", kMetadataKey, "\":", JsonText(metadata));
    comma = ",";
  }
  uint64_t offset = 0;
  for (const TensorHeading& tensor : tensors) {
    const uint64_t end = offset + tensor.bytes;
    absl::StrAppend(&text, comma, JsonText(tensor.name), ":{\"dtype\":\"",
                    tensor.type, "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    offset, ",", end, "]}");
    comma = ",";
    offset = end;
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = text.size() - kSafetensorsSizeBytes;
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", path, ": the header of ", header_bytes,
                     " bytes is above the format's limit of ", kHeaderBytesMax,
                     "; fewer tensors, or less metadata, are required"));
  }
  std::memcpy(text.data(), &header_bytes, sizeof(header_bytes));
  return text;
}

absl::Status WriteSafetensors(const std::string& path,
                              absl::Span<const TensorView> tensors,
                              const TensorMetadata& metadata,
                              absl::Span<const TypedTensor> others) {
  std::vector<TensorHeading> headings;
  std::vector<absl::string_view> parts = {""};
  for (const TensorView& tensor : tensors) {
    parts.push_back(BytesOf(tensor.values.data(), tensor.values.size()));
    headings.push_back({tensor.name, "F32", tensor.shape, parts.back().size()});
  }
  for (const TypedTensor& tensor : others) {
    parts.push_back(BytesOf(tensor.bytes.data(), tensor.bytes.size()));
    headings.push_back(
        {tensor.name, tensor.type, tensor.shape, parts.back().size()});
  }
  SL_ASSIGN_OR_RETURN(const std::string header,
                      MakeSafetensorsHeader(path, headings, metadata));
  parts.front() = header;
  return WriteFileAtomically(path, parts);
}

absl::Status CheckSafetensorsHeaderSize(const std::string& path,
                                        uint64_t header_bytes,
                                        uint64_t file_bytes) {
  const uint64_t most = std::min(
      kHeaderBytesMax,
      file_bytes - std::min<uint64_t>(file_bytes, kSafetensorsSizeBytes));
  if (header_bytes <= most) return absl::OkStatus();
  return Corrupt(
      path, absl::StrCat("the header size ", header_bytes, " is above ", most));
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    const std::string& path, absl::string_view json, uint64_t data_bytes) {
  return ParseHeader(path, json, data_bytes);
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  // A pipe of that name must not make anybody wait.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return ReadError(path, "open", errno);
  std::unique_ptr<SafetensorsReader> reader(
      new SafetensorsReader(path, std::move(file)));
  SL_RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

bool SafetensorsReader::IsFloat(absl::string_view type) {
  return type == "F32" || type == "F16" || type == "BF16" || type == "F64";
}

absl::Status SafetensorsReader::ReadHeader() {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) return ReadError(path_, "stat", errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, " is no regular file; a safetensors file is required"));
  }
  const auto file_bytes = static_cast<uint64_t>(status.st_size);
  uint64_t header_bytes = 0;
  SL_RETURN_IF_ERROR(
      ReadAt(0, kSafetensorsSizeBytes, &header_bytes, "the header size"));
  SL_RETURN_IF_ERROR(
      CheckSafetensorsHeaderSize(path_, header_bytes, file_bytes));
  std::string text(header_bytes, '\0');
  SL_RETURN_IF_ERROR(
      ReadAt(kSafetensorsSizeBytes, text.size(), text.data(), "the header"));
  data_begin_ = kSafetensorsSizeBytes + header_bytes;
  SL_ASSIGN_OR_RETURN(header_,
                      ParseHeader(path_, text, file_bytes - data_begin_));
  return absl::OkStatus();
}

absl::Status SafetensorsReader::ReadAt(uint64_t offset, size_t bytes, void* to,
                                       absl::string_view what) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got =
        pread(file_.get(), out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ReadError(path_, "read", errno);
    if (got == 0) return Corrupt(path_, absl::StrCat("ends inside ", what));
    out += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> SafetensorsReader::ReadFloats(
    const TensorPlace& place) const {
  const std::string name = absl::StrCat("tensor '", place.name, "'");
  if (!IsFloat(place.type)) {
    return absl::UnimplementedError(absl::StrCat(
        path_, ": ", name, ": type ", Shortened(place.type, kTypeBytesShown),
        " cannot be read as float32; F32, F16, BF16 and F64 can"));
  }
  const size_t size = SizeOfType(place.type);
  const size_t elements = (place.end - place.begin) / size;
  Tensor tensor{place.name, place.shape, std::vector<float>(elements)};
  if (place.type == "F32") {
    SL_RETURN_IF_ERROR(ReadAt(data_begin_ + place.begin, elements * size,
                              tensor.values.data(), name));
    return tensor;
  }
  std::vector<std::byte> some(std::min(elements * size, kBytesAtOnce));
  for (size_t begin = 0; begin < elements; begin += some.size() / size) {
    const size_t count = std::min(elements - begin, some.size() / size);
    SL_RETURN_IF_ERROR(ReadAt(data_begin_ + place.begin + begin * size,
                              count * size, some.data(), name));
    double too_large = 0;
    if (!ExpandFloats(place.type, some.data(), count,
                      tensor.values.data() + begin, &too_large)) {
      return absl::OutOfRangeError(absl::StrCat(
          path_, ": ", name, ": its value ", too_large,
          " of F64 is beyond float32, whose largest is about 3.4e38"));
    }
  }
  return tensor;
}

absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                      SafetensorsReader::Open(path));
  SL_RETURN_IF_ERROR(CheckFloat32(path, reader->header().tensors));
  SafetensorsFile result;
  result.metadata = reader->header().metadata;
  for (const TensorPlace& place : reader->header().tensors) {
    SL_ASSIGN_OR_RETURN(result.tensors.emplace_back(),
                        reader->ReadFloats(place));
  }
  return result;
}

std::string TensorsSha256(absl::Span<const TensorView> tensors) {
  Sha256 hash;
  const auto add_count = [&hash](uint64_t count) {
    hash.Update(BytesOf(&count, 1));
  };
  // Every part of varying length is preceded by its length, so that no two
  // lists of tensors give the same bytes.
  add_count(tensors.size());
  for (const TensorView& tensor : tensors) {
    add_count(tensor.name.size());
    hash.Update(tensor.name);
    add_count(tensor.shape.size());
    hash.Update(BytesOf(tensor.shape.data(), tensor.shape.size()));
    add_count(tensor.values.size());
    hash.Update(BytesOf(tensor.values.data(), tensor.values.size()));
  }
  return hash.Finish();
}

}  // namespace slackline
