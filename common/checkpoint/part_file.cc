#include "common/checkpoint/part_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/base/casts.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/block/bounds.h"
#include "common/io/atomic_file.h"
#include "common/io/safetensors.h"
#include "common/io/state_hash.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/with_memory.h"

namespace slackline {
namespace {

constexpr size_t kPartNameBytesMax = 255;
constexpr size_t kTensorNameBytesShown = 96;  // Of a tensor, in errors.
constexpr size_t kTypeBytesShown = 16;        // Likewise.
constexpr size_t kCheckBytes = 1 << 20;
constexpr int64_t kPartFloatBytes = sizeof(float);

absl::string_view BytesOf(const Payload& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

std::string PieceName(absl::string_view table, const Region& region) {
  return absl::StrCat(table, region.Text());
}

std::string TensorName(absl::string_view piece, int slot) {
  return absl::StrCat(piece, "/", slot);
}

std::string TurnTensorName(absl::string_view piece, int tensor) {
  return absl::StrCat(piece, "/turns/", tensor);
}

// All that lies behind the values, in its order.
std::vector<Payload> BehindValues(const ShardState& shard) {
  std::vector<Payload> tensors = shard.slots;
  if (shard.turns.has_value()) {
    tensors.insert(tensors.end(), shard.turns->tensors.begin(),
                   shard.turns->tensors.end());
  }
  return tensors;
}

std::string PieceName(const PartFile::Piece& piece) {
  return PieceName(piece.table, piece.region);
}

// How a file lists a tensor of the shard.
TensorHeading HeadingOf(const ShardState& shard, std::string name,
                        const Payload& tensor) {
  const auto bytes = static_cast<int64_t>(tensor.size());
  if (shard.floats)
    return {std::move(name), "F32", {shard.region.size()}, tensor.size()};
  return {std::move(name), "U8", {bytes}, tensor.size()};
}

// Empty, or why no tensor of such a piece is listed so.
std::string WhyNotListed(const TensorPlace& tensor,
                         const PartFile::Piece& piece) {
  if (tensor.type != "F32" && tensor.type != "U8") {
    return absl::StrCat("type ", Shortened(tensor.type, kTypeBytesShown),
                        " is not supported, only F32 and U8 are");
  }
  if ((tensor.type == "F32") != piece.floats)
    return "its type is not that of the shard's values";
  const int64_t numbers = piece.floats
                              ? piece.region.size()
                              : static_cast<int64_t>(tensor.end - tensor.begin);
  if (tensor.shape == std::vector<int64_t>{numbers}) return "";
  return absl::StrCat("its shape is not [", numbers, "]");
}

// The piece's version, hash, running root mean square and turns in one line.
std::string MetadataText(const PartFile::Piece& piece) {
  std::string text =
      absl::StrFormat("version %d, hash %016x", piece.version, piece.hash);
  if (const RunningRms& rms = piece.running_rms; rms != RunningRms()) {
    absl::StrAppendFormat(&text, ", rms %016x of %d",
                          absl::bit_cast<uint64_t>(rms.mean()), rms.count());
  }
  if (piece.turns.has_value())
    absl::StrAppend(&text, ", turns ", TurnsText(*piece.turns));
  return text;
}

bool ParseRunningRms(absl::string_view text, RunningRms* rms) {
  const size_t space = text.find(' ');
  if (space == absl::string_view::npos) return false;
  uint64_t bits = 0;
  uint64_t count = 0;
  if (!absl::SimpleHexAtoi(text.substr(0, space), &bits)) return false;
  text.remove_prefix(space);
  if (!absl::ConsumePrefix(&text, " of ") || !absl::SimpleAtoi(text, &count))
    return false;
  const auto mean = absl::bit_cast<double>(bits);
  *rms = RunningRms(mean, count);
  return std::isfinite(mean) && mean >= 0 && count <= kVersionMax;
}

// Takes what is before the next comma.
absl::string_view TakeField(absl::string_view* text) {
  const size_t end = std::min(text->find(','), text->size());
  const absl::string_view field = text->substr(0, end);
  text->remove_prefix(end);
  return field;
}

// Reads from the front what MetadataText() has written, and nothing else.
bool ParseMetadataText(const std::string& text, PartFile::Piece* piece) {
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "version ") ||
      !absl::SimpleAtoi(TakeField(&rest), &piece->version) ||
      !absl::ConsumePrefix(&rest, ", hash ") ||
      !absl::SimpleHexAtoi(TakeField(&rest), &piece->hash)) {
    return false;
  }
  if (absl::ConsumePrefix(&rest, ", rms ") &&
      !ParseRunningRms(TakeField(&rest), &piece->running_rms)) {
    return false;
  }
  if (absl::ConsumePrefix(&rest, ", turns ")) {
    piece->turns = ParseTurnsText(rest);
    if (!piece->turns.has_value()) return false;
  }
  return text == MetadataText(*piece);
}

// The table and the elements of "<table>[<begin>, <end>)"; nothing if the name
// is written in any other way.
std::optional<PartFile::Piece> ParsePieceName(const std::string& name) {
  const size_t bracket = name.rfind('[');
  if (bracket == std::string::npos) return std::nullopt;
  PartFile::Piece piece;
  piece.table = name.substr(0, bracket);
  absl::string_view range(name);
  range.remove_prefix(bracket + 1);
  const size_t comma = range.find(',');
  int64_t begin = 0;
  if (comma == absl::string_view::npos ||
      !absl::SimpleAtoi(range.substr(0, comma), &begin)) {
    return std::nullopt;
  }
  range.remove_prefix(comma);
  int64_t end = 0;
  if (!absl::ConsumePrefix(&range, ", ") || !absl::ConsumeSuffix(&range, ")") ||
      !absl::SimpleAtoi(range, &end)) {
    return std::nullopt;
  }
  piece.region = {begin, end};
  if (PieceName(piece) != name) return std::nullopt;
  return piece;
}

// What is wrong with such a piece by itself; empty: nothing.
std::string WhyNoPiece(const std::string& table, const Region& region) {
  if (table.size() > kTableNameBytesMax) {
    return absl::StrCat("its table's name has ", table.size(), " bytes, above ",
                        kTableNameBytesMax);
  }
  constexpr Region kLargest = Region::First(kTableElementsMax);
  if (!kLargest.Contains(region)) {
    return absl::StrCat(region.Text(), " are no elements of ", kLargest.Text());
  }
  return "";
}

absl::Status OpenError(const std::string& path, int error_number) {
  const std::string message = absl::StrCat(
      "open ", path, ": ", std::generic_category().message(error_number));
  // The manifest says that it is there.
  return error_number == ENOENT ? absl::DataLossError(message)
                                : absl::UnavailableError(message);
}

}  // namespace

absl::StatusOr<checkpoint::Part> WritePart(
    const std::string& folder, const std::string& file,
    absl::Span<const ShardState> shards) {
  checkpoint::Part part;
  if (shards.empty()) return part;
  const std::string path = absl::StrCat(folder, "/", file);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("create ", folder, ": ", error.message()));
  }
  std::vector<TensorHeading> headings;
  TensorMetadata metadata;
  for (const ShardState& shard : shards) {
    const std::string name = PieceName(shard.table, shard.region);
    if (const std::string why = WhyNoPiece(shard.table, shard.region);
        !why.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("write ", path, ": shard ", name, ": ", why));
    }
    headings.push_back(HeadingOf(shard, name, shard.values));
    for (size_t s = 0; s < shard.slots.size(); ++s) {
      headings.push_back(HeadingOf(shard, TensorName(name, static_cast<int>(s)),
                                   shard.slots[s]));
    }
    PartFile::Piece piece{
        .table = shard.table,
        .region = shard.region,
        .version = shard.version,
        .hash = StateHash(shard.version, shard.values, BehindValues(shard)),
        .running_rms = shard.running_rms};
    if (shard.turns.has_value()) {
      piece.turns = shard.turns->turns;
      for (size_t t = 0; t < shard.turns->tensors.size(); ++t) {
        headings.push_back(HeadingOf(shard,
                                     TurnTensorName(name, static_cast<int>(t)),
                                     shard.turns->tensors[t]));
      }
    }
    metadata[name] = MetadataText(piece);
  }
  SL_ASSIGN_OR_RETURN(const std::string header,
                      MakeSafetensorsHeader(path, headings, metadata));
  std::vector<absl::string_view> bytes = {header};
  for (const ShardState& shard : shards) {
    bytes.push_back(BytesOf(shard.values));
    for (const Payload& tensor : BehindValues(shard))
      bytes.push_back(BytesOf(tensor));
  }
  SL_RETURN_IF_ERROR(WriteFileAtomically(path, bytes));
  // Its name has to be there, too, when the machine stops.
  SL_RETURN_IF_ERROR(SyncFolder(folder));
  int64_t total = 0;
  for (const absl::string_view some : bytes)
    total += static_cast<int64_t>(some.size());
  part.set_file(file);
  part.set_bytes(total);
  part.set_header_hash(BytesHash(header.data(), header.size()));
  part.set_shards(static_cast<int32_t>(shards.size()));
  return part;
}

std::string WhyNoPart(const checkpoint::Part& part) {
  const std::string& file = part.file();
  const std::string name =
      absl::StrCat("part '", Shortened(file, kTensorNameBytesShown));
  if (file.empty() || file.size() > kPartNameBytesMax || file == "." ||
      file == ".." || file.find_first_of({"/\0", 2}) != std::string::npos) {
    return absl::StrCat(name, "': the name of a file in the folder, of 1 to ",
                        kPartNameBytesMax, " bytes, is required");
  }
  if (part.shards() < 1) {
    return absl::StrCat(name, "' has ", part.shards(),
                        " shards; at least 1 is required");
  }
  // Each shard has a tensor of at least one number.
  if (part.bytes() < part.shards() * kPartFloatBytes) {
    return absl::StrCat(name, "' has ", part.bytes(), " bytes for ",
                        part.shards(), " shards; at least ",
                        part.shards() * kPartFloatBytes, " are required");
  }
  return "";
}

absl::StatusOr<std::unique_ptr<PartFile>> PartFile::Open(
    const std::string& folder, const checkpoint::Part& part) {
  if (const std::string why = WhyNoPart(part); !why.empty())
    return absl::DataLossError(absl::StrCat(folder, ": ", why));
  const std::string path = absl::StrCat(folder, "/", part.file());
  // A pipe of that name must not make anybody wait.
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return OpenError(path, errno);
  std::unique_ptr<PartFile> result(new PartFile(path, std::move(file)));
  struct stat status {};
  if (fstat(result->file_.get(), &status) != 0) return OpenError(path, errno);
  if (!S_ISREG(status.st_mode))
    return absl::DataLossError(absl::StrCat(path, " is not a file"));
  if (status.st_size != part.bytes()) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", status.st_size, " bytes, and the manifest says ",
        part.bytes(), "; the file is torn or of another checkpoint"));
  }
  SL_RETURN_IF_ERROR(result->ReadHeader(part));
  return result;
}

absl::Status PartFile::ReadHeader(const checkpoint::Part& part) {
  if (part.bytes() < static_cast<int64_t>(kSafetensorsSizeBytes)) {
    return absl::DataLossError(
        absl::StrCat(path_, " has ", part.bytes(), " bytes; at least ",
                     kSafetensorsSizeBytes, " are required"));
  }
  uint64_t json_bytes = 0;
  SL_RETURN_IF_ERROR(ReadAt(0, kSafetensorsSizeBytes, &json_bytes));
  SL_RETURN_IF_ERROR(CheckSafetensorsHeaderSize(
      path_, json_bytes, static_cast<uint64_t>(part.bytes())));
  std::string bytes(kSafetensorsSizeBytes + json_bytes, '\0');
  SL_RETURN_IF_ERROR(ReadAt(0, bytes.size(), bytes.data()));
  const uint64_t hash = BytesHash(bytes.data(), bytes.size());
  if (hash != part.header_hash()) {
    return absl::DataLossError(absl::StrFormat(
        "%s: bytes [0, %d) have the hash %016x, and the manifest says %016x; "
        "the header is damaged or of another checkpoint",
        path_, bytes.size(), hash, part.header_hash()));
  }
  SL_ASSIGN_OR_RETURN(
      const SafetensorsHeader header,
      ParseSafetensorsHeader(
          path_, absl::string_view(bytes).substr(kSafetensorsSizeBytes),
          static_cast<uint64_t>(part.bytes()) - bytes.size()));

  std::string name;      // Of the last piece.
  int turn_tensors = 0;  // That it has had.
  const auto is_whole = [&] {
    return pieces_.empty() ||
           pieces_.back().tensors() == 1 + pieces_.back().slots + turn_tensors;
  };
  for (const TensorPlace& tensor : header.tensors) {
    const int64_t offset = static_cast<int64_t>(bytes.size() + tensor.begin);
    const auto bad = [&](absl::string_view what) {
      return absl::DataLossError(absl::StrCat(
          path_, ": offset ", offset, ": tensor '",
          Shortened(tensor.name, kTensorNameBytesShown), "': ", what));
    };
    if (!pieces_.empty() && turn_tensors == 0 &&
        tensor.name == TensorName(name, pieces_.back().slots)) {
      ++pieces_.back().slots;
    } else if (!is_whole()) {
      if (tensor.name != TurnTensorName(name, turn_tensors))
        return bad("is not the next tensor of the turns of the one before it");
      ++turn_tensors;
    } else {
      std::optional<Piece> piece = ParsePieceName(tensor.name);
      if (!piece.has_value()) {
        return bad(
            "is neither a shard, as in 'table[0, 100)', nor the next slot of "
            "the one before it");
      }
      if (const std::string why = WhyNoPiece(piece->table, piece->region);
          !why.empty())
        return bad(why);
      const auto metadata = header.metadata.find(tensor.name);
      if (metadata == header.metadata.end() ||
          !ParseMetadataText(metadata->second, &*piece)) {
        return bad("the metadata does not give its version and hash");
      }
      if (piece->version > kVersionMax) {
        return bad(
            absl::StrCat("its version ", piece->version, " is above 2^60"));
      }
      piece->offset = offset;
      piece->floats = tensor.type == "F32";
      name = tensor.name;
      turn_tensors = 0;
      pieces_.push_back(*std::move(piece));
    }
    if (const std::string why = WhyNotListed(tensor, pieces_.back());
        !why.empty())
      return bad(why);
    pieces_.back().tensor_bytes.push_back(tensor.end - tensor.begin);
  }
  if (!is_whole()) {
    return absl::DataLossError(
        absl::StrCat(path_, ": the last shard has ", turn_tensors,
                     " tensors of its turns, and more are required"));
  }
  if (pieces_.size() != static_cast<size_t>(part.shards()) ||
      header.metadata.size() != pieces_.size()) {
    return absl::DataLossError(absl::StrCat(
        path_, ": has ", pieces_.size(), " shards and metadata of ",
        header.metadata.size(), ", and the manifest says ", part.shards()));
  }
  return absl::OkStatus();
}

absl::Status PartFile::ReadAt(int64_t offset, size_t bytes, void* to) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t some = pread(file_.get(), at, bytes, offset);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) {
      return absl::UnavailableError(
          absl::StrCat("read ", path_, " at offset ", offset, ": ",
                       std::generic_category().message(errno)));
    }
    if (some == 0) {
      return absl::DataLossError(absl::StrCat(
          path_, ": ends at offset ", offset, ", ", bytes, " bytes too early"));
    }
    at += some;
    offset += some;
    bytes -= static_cast<size_t>(some);
  }
  return absl::OkStatus();
}

absl::Status PartFile::Damaged(const Piece& piece, uint64_t hash) const {
  return absl::DataLossError(absl::StrFormat(
      "%s: bytes [%d, %d), shard %s: have the hash %016x, and the header says "
      "%016x; the file is damaged",
      path_, piece.offset, piece.offset + piece.bytes(),
      Shortened(PieceName(piece), kTensorNameBytesShown), hash, piece.hash));
}

absl::Status PartFile::Check(const Piece& piece) const {
  int64_t left = piece.bytes();
  int64_t offset = piece.offset;
  std::vector<std::byte> buffer(
      std::min(static_cast<size_t>(left), kCheckBytes));
  StateHasher hasher(piece.version);
  while (left > 0) {
    const size_t bytes = std::min(static_cast<size_t>(left), buffer.size());
    SL_RETURN_IF_ERROR(ReadAt(offset, bytes, buffer.data()));
    hasher.Add(buffer.data(), bytes);
    offset += static_cast<int64_t>(bytes);
    left -= static_cast<int64_t>(bytes);
  }
  if (hasher.Hash() != piece.hash) return Damaged(piece, hasher.Hash());
  return absl::OkStatus();
}

absl::StatusOr<ShardState> PartFile::Read(const Piece& piece) const {
  ShardState shard = {.table = piece.table,
                      .region = piece.region,
                      .version = piece.version,
                      .values = {},
                      .running_rms = piece.running_rms,
                      .floats = piece.floats};
  if (piece.turns.has_value())
    shard.turns = StoredTurns{.turns = *piece.turns, .tensors = {}};
  for (int tensor = 0; tensor < piece.tensors(); ++tensor) {
    const size_t bytes = piece.tensor_bytes[static_cast<size_t>(tensor)];
    Payload payload;
    SL_RETURN_IF_ERROR(WithMemory(bytes, PieceName(piece),
                                  [&] { payload = Payload::Allocate(bytes); }));
    SL_RETURN_IF_ERROR(
        ReadTensor(piece, tensor, 0, {payload.MutableData(), bytes}));
    if (tensor == 0) {
      shard.values = std::move(payload);
    } else if (tensor <= piece.slots) {
      shard.slots.push_back(std::move(payload));
    } else {
      shard.turns->tensors.push_back(std::move(payload));
    }
  }
  const uint64_t hash =
      StateHash(shard.version, shard.values, BehindValues(shard));
  if (hash != piece.hash) return Damaged(piece, hash);
  return shard;
}

absl::Status PartFile::ReadTensor(const Piece& piece, int tensor, size_t offset,
                                  absl::Span<std::byte> to) const {
  SL_CHECK(tensor >= 0 && tensor < piece.tensors(), PieceName(piece));
  const auto of_tensor = piece.tensor_bytes.begin() + tensor;
  SL_CHECK(offset <= *of_tensor && to.size() <= *of_tensor - offset,
           PieceName(piece));
  const size_t before =
      std::accumulate(piece.tensor_bytes.begin(), of_tensor, offset);
  return ReadAt(piece.offset + static_cast<int64_t>(before), to.size(),
                to.data());
}

}  // namespace slackline
