#include "common/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/io/atomic_file.h"
#include "common/io/sha256.h"
#include "common/status.h"
#include "nlohmann/json.hpp"

namespace slackline {
namespace {

static_assert(
    std::endian::native == std::endian::little,
    "tensors are written as they lie in memory; the format is little-endian");

constexpr char kMetadataKey[] = "__metadata__";
constexpr size_t kSizeBytes = sizeof(uint64_t);
// The format's own limit for a header.
constexpr uint64_t kHeaderBytesMax = 100'000'000;

template <typename T>
absl::string_view BytesOf(const T* values, size_t count) {
  return {reinterpret_cast<const char*>(values), count * sizeof(T)};
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Elements of a tensor of this shape; nothing if a size is below 1 or the bytes
// would not fit into 63 bits.
std::optional<int64_t> Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 1 || __builtin_mul_overflow(elements, size, &elements))
      return std::nullopt;
  }
  if (elements > INT64_MAX / static_cast<int64_t>(sizeof(float)))
    return std::nullopt;
  return elements;
}

// Bytes of an element; 0: no type of the format.
size_t SizeOfType(absl::string_view type) {
  static constexpr std::pair<absl::string_view, size_t> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"U16", 2}, {"I16", 2},
      {"F16", 2},  {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},
      {"U64", 8},  {"I64", 8},  {"F64", 8}};
  for (const auto& [name, size] : kTypes) {
    if (name == type) return size;
  }
  return 0;
}

absl::Status CheckTensors(const std::string& path,
                          absl::Span<const TensorView> tensors,
                          absl::Span<const TypedTensor> others) {
  std::set<std::string> names;
  const auto check = [&](const std::string& name, const std::string& type,
                         const std::vector<int64_t>& shape, size_t bytes) {
    const std::string where =
        absl::StrCat("write ", path, ": tensor '", name, "'");
    if (name == kMetadataKey || !names.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": the name is taken; each tensor needs one of its own"));
    }
    const size_t size = SizeOfType(type);
    if (size == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": type is '", type,
          "', which is none of the format; F32, I64, BOOL are some"));
    }
    const std::optional<int64_t> elements = Elements(shape);
    if (bytes % size != 0 || elements != static_cast<int64_t>(bytes / size)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": shape ", ShapeText(shape), " does not make ", bytes / size,
          " values; sizes of at least 1 are required"));
    }
    return absl::OkStatus();
  };
  for (const TensorView& tensor : tensors) {
    SL_RETURN_IF_ERROR(check(tensor.name, "F32", tensor.shape,
                             tensor.values.size() * sizeof(float)));
  }
  for (const TypedTensor& tensor : others) {
    SL_RETURN_IF_ERROR(
        check(tensor.name, tensor.type, tensor.shape, tensor.bytes.size()));
  }
  return absl::OkStatus();
}

// A file that is being read, and what to say about it.
struct Reader {
  std::string path;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file;
  uint64_t bytes = 0;  // Size of the file.

  absl::Status Corrupt(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat(
        path, ": ", what, "; the file is damaged or not a safetensors file"));
  }
  absl::Status Read(void* to, size_t size, absl::string_view what) const {
    if (std::fread(to, 1, size, file.get()) == size) return absl::OkStatus();
    if (std::ferror(file.get()) != 0) {
      return absl::UnavailableError(
          absl::StrCat("read ", path, ": ", what, ": ",
                       std::generic_category().message(errno)));
    }
    return Corrupt(absl::StrCat("ends inside ", what));
  }
};

absl::StatusOr<Reader> OpenReader(const std::string& path) {
  Reader reader{path, {std::fopen(path.c_str(), "rb"), &std::fclose}};
  const int error_number = errno;
  std::error_code error;
  if (reader.file != nullptr)
    reader.bytes = std::filesystem::file_size(path, error);
  if (reader.file == nullptr || error) {
    const std::string message =
        absl::StrCat("open ", path, ": ",
                     error ? error.message()
                           : std::generic_category().message(error_number));
    return error_number == ENOENT ? absl::NotFoundError(message)
                                  : absl::UnavailableError(message);
  }
  return reader;
}

// A tensor as the header describes it.
struct Entry {
  std::string name;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // Bytes from the start of the data.
  uint64_t end = 0;
};

absl::StatusOr<Entry> ParseEntry(const Reader& reader, const std::string& name,
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
    return reader.Corrupt(absl::StrCat(
        tensor,
        ": the header does not give dtype, shape and two data_offsets"));
  }
  const auto dtype = json["dtype"].get<std::string>();
  if (dtype != "F32") {
    return absl::UnimplementedError(
        absl::StrCat(reader.path, ": ", tensor, ": type ", dtype,
                     " is not supported, only F32 is; convert it first"));
  }
  Entry entry{name, json["shape"].get<std::vector<int64_t>>(),
              json["data_offsets"][0].get<uint64_t>(),
              json["data_offsets"][1].get<uint64_t>()};
  if (entry.begin > entry.end || entry.end > data_bytes) {
    return reader.Corrupt(
        absl::StrCat(tensor, ": bytes [", entry.begin, ", ", entry.end,
                     ") are not within the data's [0, ", data_bytes, ")"));
  }
  const std::optional<int64_t> elements = Elements(entry.shape);
  if (!elements || static_cast<uint64_t>(*elements) * sizeof(float) !=
                       entry.end - entry.begin) {
    return reader.Corrupt(
        absl::StrCat(tensor, ": shape ", ShapeText(entry.shape),
                     " of float32 does not make the ", entry.end - entry.begin,
                     " bytes at offset ", entry.begin));
  }
  return entry;
}

absl::StatusOr<std::vector<Entry>> ParseEntries(const Reader& reader,
                                                const nlohmann::json& header,
                                                uint64_t data_bytes) {
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadataKey) continue;
    SL_ASSIGN_OR_RETURN(Entry entry,
                        ParseEntry(reader, name, json, data_bytes));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
  uint64_t offset = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != offset) {
      return reader.Corrupt(
          absl::StrCat("tensor '", entry.name, "': starts at offset ",
                       entry.begin, ", the tensors before it end at ", offset));
    }
    offset = entry.end;
  }
  if (offset != data_bytes) {
    return reader.Corrupt(absl::StrCat("the tensors end at offset ", offset,
                                       ", the data at ", data_bytes));
  }
  return entries;
}

absl::StatusOr<TensorMetadata> ParseMetadata(const Reader& reader,
                                             const nlohmann::json& header) {
  TensorMetadata metadata;
  if (!header.contains(kMetadataKey)) return metadata;
  const nlohmann::json& json = header[kMetadataKey];
  if (!json.is_object()) return reader.Corrupt("__metadata__ is not a map");
  for (const auto& [key, value] : json.items()) {
    if (!value.is_string()) {
      return reader.Corrupt(
          absl::StrCat("__metadata__: the value of '", key, "' is not text"));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path,
                              absl::Span<const TensorView> tensors,
                              const TensorMetadata& metadata,
                              absl::Span<const TypedTensor> others) {
  SL_RETURN_IF_ERROR(CheckTensors(path, tensors, others));
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json[kMetadataKey] = metadata;
  uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    const uint64_t end = offset + tensor.values.size() * sizeof(float);
    json[tensor.name] = {{"dtype", "F32"},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, end}}};
    offset = end;
  }
  for (const TypedTensor& tensor : others) {
    const uint64_t end = offset + tensor.bytes.size();
    json[tensor.name] = {{"dtype", tensor.type},
                         {"shape", tensor.shape},
                         {"data_offsets", {offset, end}}};
    offset = end;
  }
  // Text that is not UTF-8 would make dump() throw; such bytes are replaced.
  std::string header = json.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("write ", path, ": the header of ", header_bytes,
                     " bytes is above the format's limit of ", kHeaderBytesMax,
                     "; shorten the metadata"));
  }
  std::vector<absl::string_view> parts = {BytesOf(&header_bytes, 1), header};
  for (const TensorView& tensor : tensors) {
    parts.push_back(BytesOf(tensor.values.data(), tensor.values.size()));
  }
  for (const TypedTensor& tensor : others) {
    parts.push_back(BytesOf(tensor.bytes.data(), tensor.bytes.size()));
  }
  return WriteFileAtomically(path, parts);
}

absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const Reader reader, OpenReader(path));
  uint64_t header_bytes = 0;
  SL_RETURN_IF_ERROR(reader.Read(&header_bytes, kSizeBytes, "the header size"));
  if (header_bytes > kHeaderBytesMax ||
      header_bytes > reader.bytes - kSizeBytes) {
    return reader.Corrupt(
        absl::StrCat("the header size ", header_bytes, " is above ",
                     std::min(kHeaderBytesMax, reader.bytes - kSizeBytes)));
  }
  std::string text(header_bytes, '\0');
  SL_RETURN_IF_ERROR(reader.Read(text.data(), text.size(), "the header"));
  const auto header =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object())
    return reader.Corrupt("the header is not a JSON map");

  SafetensorsFile result;
  SL_ASSIGN_OR_RETURN(result.metadata, ParseMetadata(reader, header));
  SL_ASSIGN_OR_RETURN(
      const std::vector<Entry> entries,
      ParseEntries(reader, header, reader.bytes - kSizeBytes - header_bytes));
  for (const Entry& entry : entries) {
    Tensor tensor{
        entry.name, entry.shape,
        std::vector<float>((entry.end - entry.begin) / sizeof(float))};
    SL_RETURN_IF_ERROR(reader.Read(tensor.values.data(),
                                   entry.end - entry.begin,
                                   absl::StrCat("tensor '", entry.name, "'")));
    result.tensors.push_back(std::move(tensor));
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
