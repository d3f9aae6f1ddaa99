#include "common/checkpoint/stored_checkpoint.h"

#include <algorithm>
#include <deque>
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

std::string PieceText(const std::string& table, const Region& region) {
  return absl::StrCat(Shortened(table, kTableNameBytesShown), region.Text());
}

// The tensors of a piece as they are read, one after the other; their hash is
// looked at if all of them were.
class PieceReader {
 public:
  PieceReader(const PartFile& file, const PartFile::Piece& piece)
      : file_(file), piece_(piece), hasher_(piece.version) {}

  TensorForm::Piece Tensor(int tensor) {
    return {.region = piece_.region,
            .bytes = piece_.tensor_bytes[static_cast<size_t>(tensor)],
            .read = [this, tensor](size_t offset, absl::Span<std::byte> to) {
              SL_CHECK(std::pair(tensor, offset) >= next_,
                       PieceText(piece_.table, piece_.region));
              next_ = {tensor, offset + to.size()};
              const absl::Status read =
                  file_.ReadTensor(piece_, tensor, offset, to);
              hasher_.Add(to.data(), to.size());
              bytes_ += static_cast<int64_t>(to.size());
              return read;
            }};
  }
  // No byte is read twice, so as many as there are are all of them.
  absl::Status CheckIfWhole() const {
    const bool is_damaged =
        bytes_ == piece_.bytes() && hasher_.Hash() != piece_.hash;
    return is_damaged ? file_.Damaged(piece_, hasher_.Hash())
                      : absl::OkStatus();
  }

 private:
  const PartFile& file_;
  const PartFile::Piece& piece_;
  StateHasher hasher_;
  std::pair<int, size_t> next_ = {0, 0};  // Tensor and offset: nothing before.
  int64_t bytes_ = 0;
};

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
    Pieces pieces = {.whole = Region::First(elements[t])};
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
      return absl::DataLossError(
          absl::StrCat(file.path(), ": offset ", piece.offset, ": shard ",
                       PieceText(piece.table, piece.region), what...));
    };
    const auto table = tables_.find(piece.table);
    if (table == tables_.end())
      return bad(" is of a table that the manifest does not have");
    Pieces& pieces = table->second;
    if (!pieces.whole.Contains(piece.region)) {
      return bad(" is outside of the table, which has ", pieces.whole.size(),
                 " elements");
    }
    if (piece.slots != pieces.slots) {
      return bad(" has ", piece.slots, " optimizer slots; ", pieces.slots,
                 " are required, by the manifest");
    }
    const auto after = pieces.places.lower_bound(piece.region);
    const Region* other = nullptr;
    if (after != pieces.places.end() && after->first.Overlaps(piece.region))
      other = &after->first;
    if (after != pieces.places.begin() &&
        std::prev(after)->first.Overlaps(piece.region)) {
      other = &std::prev(after)->first;
    }
    if (other != nullptr)
      return bad(" overlaps with ", PieceText(piece.table, *other));
    pieces.places.emplace_hint(after, piece.region, Place{&file, &piece});
  }
  return absl::OkStatus();
}

absl::Status StoredCheckpoint::CheckWhole() const {
  for (const auto& [table, pieces] : tables_) {
    const auto missing = [&, &name = table](const Region& region) {
      return absl::DataLossError(
          absl::StrCat(folder_, ": no part has ", PieceText(name, region)));
    };
    Region rest = pieces.whole;
    for (const auto& [region, place] : pieces.places) {
      const auto [before, from] = rest.SplitAt(region.begin());
      if (!before.empty()) return missing(before);
      rest = from.SplitAt(region.end()).second;
    }
    if (!rest.empty()) return missing(rest);
  }
  return absl::OkStatus();
}

int64_t StoredCheckpoint::bytes() const { return BytesOf(manifest_); }

absl::StatusOr<ShardState> StoredCheckpoint::Read(
    const std::string& table, const Region& region,
    const TensorForm& form) const {
  return ReadTensors(table, region, form, /*with_slots=*/true);
}

absl::StatusOr<Payload> StoredCheckpoint::ReadValues(
    const std::string& table, const Region& region) const {
  SL_ASSIGN_OR_RETURN(ShardState shard, ReadTensors(table, region, FloatsForm(),
                                                    /*with_slots=*/false));
  return std::move(shard.values);
}

absl::StatusOr<ShardState> StoredCheckpoint::ReadTensors(
    const std::string& table, const Region& region, const TensorForm& form,
    bool with_slots) const {
  const auto found = tables_.find(table);
  if (found == tables_.end()) {
    return absl::NotFoundError(absl::StrCat(
        folder_, " has no table ", Shortened(table, kTableNameBytesShown)));
  }
  const Pieces& pieces = found->second;
  if (!pieces.whole.Contains(region)) {
    return absl::NotFoundError(
        absl::StrCat(folder_, " has no ", PieceText(table, region),
                     "; the table has ", pieces.whole.size(), " elements"));
  }
  ShardState shard = {.table = table,
                      .region = region,
                      .values = {},
                      .floats = form.IsFloats()};
  const std::string where =
      absl::StrCat(folder_, ": ", PieceText(table, region));
  // The first one may begin before the region.
  auto at = pieces.places.lower_bound(region);
  if (at != pieces.places.begin() && std::prev(at)->first.Overlaps(region))
    --at;
  const int tensors = with_slots ? at->second.piece->tensors() : 1;
  RunningRmsOfParts rms;
  TurnsOfPieces turns;
  std::deque<PieceReader> readers;
  for (; at != pieces.places.end() && at->first.Overlaps(region); ++at) {
    const PartFile::Piece& piece = *at->second.piece;
    const int64_t elements = region.Overlap(piece.region).size();
    if (with_slots) {
      SL_RETURN_IF_ERROR(
          Annotate(turns.Add(piece.turns.has_value() ? &*piece.turns : nullptr,
                             elements),
                   where));
    }
    shard.version = std::max(shard.version, piece.version);
    rms.Add(piece.running_rms, elements);
    if (piece.floats != form.IsFloats()) {
      return absl::DataLossError(absl::StrCat(
          where, ": ", at->second.file->path(), " lists its tensors as ",
          piece.floats ? "floats; bytes in a form of their own"
                       : "bytes in a form of their own; floats",
          " are required"));
    }
    readers.emplace_back(*at->second.file, piece);
  }
  std::vector<Payload> to;
  for (int i = 0; i < tensors; ++i) {
    std::vector<TensorForm::Piece> of_pieces;
    for (PieceReader& reader : readers) of_pieces.push_back(reader.Tensor(i));
    absl::StatusOr<Payload> joined = form.Join(region, of_pieces);
    if (!joined.ok()) return Annotate(joined.status(), where);
    to.push_back(*std::move(joined));
  }
  for (const PieceReader& reader : readers)
    SL_RETURN_IF_ERROR(reader.CheckIfWhole());
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
