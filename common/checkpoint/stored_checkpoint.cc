#include "common/checkpoint/stored_checkpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/kept_file.h"
#include "common/checkpoint/manifest.h"
#include "common/io/state_hash.h"
#include "common/optim/optimizer.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr size_t kTableNameBytesShown = 64;  // In errors.
constexpr int64_t kFloatBytes = sizeof(float);

std::string RangeText(const std::string& table, int64_t begin, int64_t end) {
  return absl::StrCat(Shortened(table, kTableNameBytesShown), "[", begin, ", ",
                      end, ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoredCheckpoint>> StoredCheckpoint::Open(
    const std::string& folder) {
  std::unique_ptr<StoredCheckpoint> stored(new StoredCheckpoint);
  stored->folder_ = folder;
  SL_ASSIGN_OR_RETURN(stored->manifest_, ReadManifest(folder));
  const checkpoint::Manifest& manifest = stored->manifest_;
  stored->sha256_ = ManifestSha256(manifest);
  const std::vector<int64_t> elements = TableElements(manifest);
  for (int t = 0; t < manifest.table_size(); ++t) {
    Pieces pieces = {.elements = elements[t]};
    if (manifest.table(t).has_optimizer()) {
      SL_ASSIGN_OR_RETURN(const Optimizer optimizer,
                          Optimizer::Create(manifest.table(t).optimizer()));
      pieces.slots = optimizer.slot_count();
    }
    stored->tables_.emplace(manifest.table(t).name(), std::move(pieces));
  }
  for (const checkpoint::Part& part : manifest.part()) {
    SL_ASSIGN_OR_RETURN(std::unique_ptr<PartFile> file,
                        PartFile::Open(folder, part));
    SL_RETURN_IF_ERROR(stored->PlacePieces(*file));
    stored->parts_.push_back(std::move(file));
  }
  SL_RETURN_IF_ERROR(stored->CheckWhole());
  // By file, in the order of the bytes: disks like that best.
  for (const std::unique_ptr<PartFile>& file : stored->parts_) {
    for (const PartFile::Piece& piece : file->pieces())
      SL_RETURN_IF_ERROR(file->Check(piece));
  }
  for (const checkpoint::Kept& kept : manifest.kept())
    SL_RETURN_IF_ERROR(CheckKept(folder, kept));
  return stored;
}

absl::Status StoredCheckpoint::PlacePieces(const PartFile& file) {
  for (const PartFile::Piece& piece : file.pieces()) {
    const auto bad = [&](const auto&... what) {
      return absl::DataLossError(absl::StrCat(
          file.path(), ": offset ", piece.offset, ": shard ",
          RangeText(piece.table, piece.begin, piece.end), what...));
    };
    const auto table = tables_.find(piece.table);
    if (table == tables_.end())
      return bad(" is of a table that the manifest does not have");
    Pieces& pieces = table->second;
    if (piece.end > pieces.elements) {
      return bad(" is outside of the table, which has ", pieces.elements,
                 " elements");
    }
    if (piece.slots != pieces.slots) {
      return bad(" has ", piece.slots, " optimizer slots; ", pieces.slots,
                 " are required, by the manifest");
    }
    const auto after = pieces.by_begin.lower_bound(piece.begin);
    const PartFile::Piece* other = nullptr;
    if (after != pieces.by_begin.end() && after->first < piece.end)
      other = after->second.piece;
    if (after != pieces.by_begin.begin() &&
        std::prev(after)->second.piece->end > piece.begin) {
      other = std::prev(after)->second.piece;
    }
    if (other != nullptr) {
      return bad(" overlaps with ",
                 RangeText(other->table, other->begin, other->end));
    }
    pieces.by_begin.emplace_hint(after, piece.begin, Place{&file, &piece});
  }
  return absl::OkStatus();
}

absl::Status StoredCheckpoint::CheckWhole() const {
  for (const auto& [table, pieces] : tables_) {
    int64_t end = 0;
    const auto missing = [&, &name = table](int64_t until) {
      return absl::DataLossError(
          absl::StrCat(folder_, ": no part has ", RangeText(name, end, until)));
    };
    for (const auto& [begin, place] : pieces.by_begin) {
      if (begin != end) return missing(begin);
      end = place.piece->end;
    }
    if (end != pieces.elements) return missing(pieces.elements);
  }
  return absl::OkStatus();
}

int64_t StoredCheckpoint::bytes() const { return BytesOf(manifest_); }

absl::StatusOr<ShardState> StoredCheckpoint::Read(const std::string& table,
                                                  int64_t begin,
                                                  int64_t end) const {
  return ReadTensors(table, begin, end, /*with_slots=*/true);
}

absl::StatusOr<Payload> StoredCheckpoint::ReadValues(const std::string& table,
                                                     int64_t begin,
                                                     int64_t end) const {
  SL_ASSIGN_OR_RETURN(ShardState shard, ReadTensors(table, begin, end, false));
  return std::move(shard.values);
}

absl::StatusOr<ShardState> StoredCheckpoint::ReadTensors(
    const std::string& table, int64_t begin, int64_t end,
    bool with_slots) const {
  const auto found = tables_.find(table);
  if (found == tables_.end()) {
    return absl::NotFoundError(absl::StrCat(
        folder_, " has no table ", Shortened(table, kTableNameBytesShown)));
  }
  const Pieces& pieces = found->second;
  if (begin < 0 || begin >= end || end > pieces.elements) {
    return absl::NotFoundError(
        absl::StrCat(folder_, " has no ", RangeText(table, begin, end),
                     "; the table has ", pieces.elements, " elements"));
  }
  ShardState shard = {.table = table, .begin = begin, .end = end, .values = {}};
  auto at = std::prev(pieces.by_begin.upper_bound(begin));
  const int tensors = with_slots ? at->second.piece->tensors() : 1;
  std::vector<Payload> to;
  for (int i = 0; i < tensors; ++i) {
    to.push_back(
        Payload::Allocate(static_cast<size_t>((end - begin) * kFloatBytes)));
  }
  RunningRmsOfParts rms;
  TurnsOfPieces turns;
  for (; at != pieces.by_begin.end() && at->first < end; ++at) {
    const auto& [file, piece] = at->second;
    const int64_t from = std::max(begin, piece->begin);
    const int64_t until = std::min(end, piece->end);
    const int64_t bytes = (until - from) * kFloatBytes;
    if (with_slots) {
      SL_RETURN_IF_ERROR(Annotate(
          turns.Add(piece->turns.has_value() ? &*piece->turns : nullptr,
                    until - from),
          absl::StrCat(folder_, ": ", RangeText(table, begin, end))));
    }
    StateHasher hasher(piece->version);
    for (int i = 0; i < tensors; ++i) {
      std::byte* const target =
          to[i].MutableData() + (from - begin) * kFloatBytes;
      SL_RETURN_IF_ERROR(file->ReadTensor(*piece, i, from, until, target));
      hasher.Add(target, static_cast<size_t>(bytes));
    }
    const bool all = from == piece->begin && until == piece->end &&
                     tensors == piece->tensors();
    if (all && hasher.Hash() != piece->hash)
      return file->Damaged(*piece, hasher.Hash());
    shard.version = std::max(shard.version, piece->version);
    rms.Add(piece->running_rms, until - from);
  }
  shard.running_rms = rms.Whole();
  shard.values = std::move(to.front());
  if (!with_slots) return shard;
  const auto end_of_slots = to.begin() + 1 + pieces.slots;
  shard.slots = {std::make_move_iterator(to.begin() + 1),
                 std::make_move_iterator(end_of_slots)};
  if (std::optional<wire::Turns> whole = turns.Whole(); whole.has_value()) {
    shard.turns = StoredTurns{.turns = *std::move(whole),
                              .tensors = {std::make_move_iterator(end_of_slots),
                                          std::make_move_iterator(to.end())}};
  }
  return shard;
}

}  // namespace slackline
