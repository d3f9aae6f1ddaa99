// A second kind of store: rows by key, in memory, of which those exist that
// somebody has pushed. Behind tests only: it shows what a store of embeddings
// has to bring along, and that nothing above ShardStore knows what is in one.
//
// Row k has the elements [k * width, (k + 1) * width) of the table. Values,
// slots and gradients are payloads of one form: RowBlock. A row that is not
// there is zeros. A shard may end within a row, and has a part of it then.
//
// Workers push and pull such blocks, or know nothing of rows: then a float for
// each element of the shard is what they push, in any code, and what they are
// told; and of a gradient those rows are there that are not zeros.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/compress/gradient_code.h"
#include "common/status.h"
#include "google/protobuf/unknown_field_set.h"
#include "server/shard/store/shard_store.h"

namespace slackline {

// Some rows of a region, sorted by key: the region's first element, the one
// behind its last, and the number of rows, then their keys, then their floats;
// of a row that is partly in the region, those that are.
struct RowBlock {
  Region region;
  size_t width = 1;
  std::map<int64_t, std::vector<float>> rows = {};

  static constexpr size_t kHeader = 3;  // Numbers before the keys.

  // What the region has of the row.
  Region Row(int64_t key) const {
    const auto size = static_cast<int64_t>(width);
    return region.Overlap({key * size, (key + 1) * size});
  }
  // Of zeros, if it is not there.
  std::vector<float>& FindOrAdd(int64_t key) {
    std::vector<float>& row = rows[key];
    row.resize(static_cast<size_t>(Row(key).size()));
    return row;
  }
  // Takes over what is within the region of a block whose rows begin or end
  // elsewhere.
  void Take(const RowBlock& other) {
    for (const auto& [key, row] : other.rows) {
      const Region from = other.Row(key);
      const Region both = region.Overlap(from);
      if (both.empty()) continue;
      const auto begin = row.begin() + (both.begin() - from.begin());
      std::copy(begin, begin + both.size(),
                FindOrAdd(key).begin() + (both.begin() - Row(key).begin()));
    }
  }
  RowBlock PartOf(const Region& part) const {
    RowBlock block{.region = part, .width = width};
    block.Take(*this);
    return block;
  }
  void DropZeros() {
    std::erase_if(rows, [](const auto& row) {
      return absl::c_all_of(row.second, [](float at) { return at == 0; });
    });
  }

  // One for each element of the region.
  std::vector<float> Floats() const {
    std::vector<float> floats(static_cast<size_t>(region.size()));
    for (const auto& [key, row] : rows) {
      std::copy(row.begin(), row.end(),
                floats.begin() + (Row(key).begin() - region.begin()));
    }
    return floats;
  }
  static RowBlock OfFloats(const Region& region, size_t width,
                           absl::Span<const float> floats) {
    RowBlock block{.region = region, .width = width};
    const auto size = static_cast<int64_t>(width);
    for (int64_t at = region.begin(); at < region.end();) {
      std::vector<float>& row = block.FindOrAdd(at / size);
      const auto from = floats.begin() + (at - region.begin());
      std::copy(from, from + static_cast<int64_t>(row.size()), row.begin());
      at += static_cast<int64_t>(row.size());
    }
    block.DropZeros();
    return block;
  }

  Payload Encode() const {
    std::vector<int64_t> numbers = {region.begin(), region.end(),
                                    static_cast<int64_t>(rows.size())};
    std::vector<float> floats;
    for (const auto& [key, row] : rows) {
      numbers.push_back(key);
      floats.insert(floats.end(), row.begin(), row.end());
    }
    const size_t of_numbers = numbers.size() * sizeof(int64_t);
    const size_t of_floats = floats.size() * sizeof(float);
    Payload payload = Payload::Allocate(of_numbers + of_floats);
    std::memcpy(payload.MutableData(), numbers.data(), of_numbers);
    if (of_floats > 0) {
      std::memcpy(payload.MutableData() + of_numbers, floats.data(), of_floats);
    }
    return payload;
  }

  // Of this region, in rows of `width`.
  static absl::StatusOr<RowBlock> Decode(const Payload& payload,
                                         const Region& region, size_t width) {
    const auto number = [&](size_t i) {
      int64_t value = 0;
      std::memcpy(&value, payload.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    if (payload.size() < kHeader * sizeof(int64_t) ||
        Region(number(0), number(1)) != region) {
      return absl::InvalidArgumentError(
          absl::StrCat("no rows of the elements ", region.Text()));
    }
    const size_t bytes = payload.size() - kHeader * sizeof(int64_t);
    const auto count = static_cast<uint64_t>(number(2));
    if (count > bytes / sizeof(int64_t)) {
      return absl::InvalidArgumentError(
          absl::StrCat(number(2), " rows in ", bytes, " bytes"));
    }
    RowBlock block{.region = region, .width = width};
    const std::byte* floats =
        payload.data() + (kHeader + count) * sizeof(int64_t);
    size_t left = bytes - count * sizeof(int64_t);
    for (size_t i = 0; i < count; ++i) {
      const int64_t key = number(kHeader + i);
      const bool is_next =
          block.rows.empty() || block.rows.rbegin()->first < key;
      const Region row = block.Row(key);
      if (!is_next || row.empty() || row.DenseBytes() > left) {
        return absl::InvalidArgumentError(absl::StrCat(
            "row ", key, " is not in ", region.Text(), ", or not in its turn"));
      }
      std::memcpy(block.FindOrAdd(key).data(), floats, row.DenseBytes());
      floats += row.DenseBytes();
      left -= row.DenseBytes();
    }
    if (left == 0) return block;
    return absl::InvalidArgumentError(
        absl::StrCat(left, " bytes behind the last of ", count, " rows"));
  }
};

// A pull names rows in a field that no product file knows. Without one it asks
// for all of them.
inline constexpr int kRowField = 1000;
inline void NameRow(int64_t key, wire::Pull* pull) {
  pull->GetReflection()->MutableUnknownFields(pull)->AddVarint(
      kRowField, static_cast<uint64_t>(key));
}
inline std::set<int64_t> RowsNamed(const wire::Pull& pull) {
  const google::protobuf::UnknownFieldSet& fields =
      pull.GetReflection()->GetUnknownFields(pull);
  std::set<int64_t> keys;
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).number() == kRowField)
      keys.insert(static_cast<int64_t>(fields.field(i).varint()));
  }
  return keys;
}

// What workers push and pull.
enum class RowFrames { kBlocks, kFloats };

class RowStore : public ShardStore {
 public:
  RowStore(RowFrames frames, RowBlock values, std::vector<RowBlock> slots)
      : frames_(frames),
        rows_(std::move(values)),
        of_slots_(std::move(slots)) {}

  std::unique_ptr<ShardStore> Clone() const override {
    return std::make_unique<RowStore>(*this);
  }

  // Made when somebody asks: an update has only its own rows to look at.
  const Payload& values() const override {
    if (values_.empty()) values_ = rows_.Encode();
    return values_;
  }
  const std::vector<Payload>& slots() const override {
    if (slots_.empty()) {
      for (const RowBlock& slot : of_slots_) slots_.push_back(slot.Encode());
    }
    return slots_;
  }

  Payload Pulled(const wire::Pull& asked) const override {
    const std::set<int64_t> keys = RowsNamed(asked);
    const bool as_floats = frames_ == RowFrames::kFloats;
    if (keys.empty() && !as_floats) return values();
    RowBlock some = rows_;
    std::erase_if(some.rows, [&](const auto& row) {
      return !keys.empty() && !keys.contains(row.first);
    });
    if (!as_floats) return some.Encode();
    const std::vector<float> floats = some.Floats();
    return Payload::Copy(floats.data(), rows_.region.DenseBytes());
  }

  absl::Status Install(const Payload& values,
                       absl::Span<const Payload> slots) override {
    rows_ = *Decode(values);
    for (size_t i = 0; i < slots.size(); ++i) of_slots_[i] = *Decode(slots[i]);
    Changed();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ShardStore>> Split(
      const Region& kept, const Region& part) override {
    std::vector<RowBlock> rest;
    for (RowBlock& slot : of_slots_) {
      rest.push_back(slot.PartOf(part));
      slot = slot.PartOf(kept);
    }
    auto store = std::make_unique<RowStore>(frames_, rows_.PartOf(part),
                                            std::move(rest));
    rows_ = rows_.PartOf(kept);
    Changed();
    return store;
  }

  absl::Status CheckFrame(const wire::Push& push,
                          const Payload& frame) const override {
    if (frames_ == RowFrames::kFloats) {
      const size_t said = push.has_encoding()
                              ? static_cast<size_t>(push.encoding().elements())
                              : Elements();
      const size_t bytes = CodeOf(push.encoding()).Bytes(Elements());
      if (said == Elements() && frame.size() == bytes) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat(frame.size(), " bytes of ", said,
                       " elements, the shard has ", Elements()));
    }
    if (push.has_encoding()) {
      return absl::InvalidArgumentError("rows come as they are, in no code");
    }
    return CheckGradient(frame);
  }
  absl::StatusOr<Payload> GradientIn(const wire::Push& push,
                                     const Payload& frame) const override {
    if (frames_ == RowFrames::kBlocks) return frame;
    const GradientCode code = CodeOf(push.encoding());
    std::vector<float> floats(Elements());
    if (code.whole()) {
      std::memcpy(floats.data(), frame.data(), frame.size());
    } else if (!slackline::Decode(code, frame.data(), absl::MakeSpan(floats))) {
      return absl::InvalidArgumentError(
          "its frame is not in the code that it names");
    }
    return RowBlock::OfFloats(rows_.region, rows_.width, floats).Encode();
  }
  absl::Status CheckGradient(const Payload& gradient) const override {
    return Decode(gradient).status();
  }
  absl::Span<const std::byte> FloatsOf(const Payload& gradient) const override {
    int64_t rows = 0;
    std::memcpy(&rows, gradient.data() + 2 * sizeof(rows), sizeof(rows));
    return gradient.bytes().subspan(
        (RowBlock::kHeader + static_cast<size_t>(rows)) * sizeof(int64_t));
  }
  std::pair<Payload, Payload> SplitGradient(const Payload& gradient,
                                            const Region& kept,
                                            const Region& part) const override {
    const RowBlock block = *Decode(gradient);
    RowBlock of_kept = block.PartOf(kept);
    RowBlock of_part = block.PartOf(part);
    if (frames_ == RowFrames::kFloats) {
      // As if each had come to its part of the shard.
      of_kept.DropZeros();
      of_part.DropZeros();
    }
    return {of_kept.Encode(), of_part.Encode()};
  }

  absl::Status Apply(const Update& update) override {
    RowBlock sum{.region = rows_.region, .width = rows_.width};
    for (const Payload& gradient : update.gradients) {
      const RowBlock block = *Decode(gradient);
      for (const auto& [key, row] : block.rows) {
        const auto [at, added] = sum.rows.try_emplace(key, row);
        for (size_t i = 0; !added && i < row.size(); ++i)
          at->second[i] += row[i];
      }
    }
    for (const auto& [key, gradient] : sum.rows) {
      const auto* const bytes =
          reinterpret_cast<const std::byte*>(gradient.data());
      Optimizer::ApplyArgs args;
      args.in = args.out = rows_.FindOrAdd(key).data();
      for (size_t i = 0; i < of_slots_.size(); ++i)
        args.slots[i] = of_slots_[i].FindOrAdd(key).data();
      args.gradients = absl::MakeConstSpan(&bytes, 1);
      args.elements = gradient.size();
      args.gradient_scale = update.scale;
      args.numbers = update.numbers;
      args.update_count = update.count;
      update.optimizer.Apply(args);
    }
    if (update.sum != nullptr) *update.sum = sum.Encode();
    Changed();
    return absl::OkStatus();
  }

  // For planted faults.
  void LoseLastRow() {
    if (rows_.rows.empty()) return;
    const int64_t last = rows_.rows.rbegin()->first;
    rows_.rows.erase(last);
    for (RowBlock& slot : of_slots_) slot.rows.erase(last);
    Changed();
  }

 private:
  absl::StatusOr<RowBlock> Decode(const Payload& payload) const {
    return RowBlock::Decode(payload, rows_.region, rows_.width);
  }
  size_t Elements() const { return static_cast<size_t>(rows_.region.size()); }
  void Changed() {
    values_ = Payload();
    slots_.clear();
  }

  RowFrames frames_;
  RowBlock rows_;
  std::vector<RowBlock> of_slots_;
  // As payloads, if somebody has asked for them since the last change.
  mutable Payload values_;
  mutable std::vector<Payload> slots_;
};

class RowKind : public StoreKind {
 public:
  explicit RowKind(size_t width, RowFrames frames = RowFrames::kBlocks)
      : width_(width), frames_(frames), form_(width) {}

  absl::StatusOr<std::unique_ptr<ShardStore>> Initial(
      const wire::Table& /*table*/, const Region& region, uint64_t /*seed*/,
      const Optimizer& optimizer) const override {
    const RowBlock none{.region = region, .width = width_};
    return std::make_unique<RowStore>(
        frames_, none,
        std::vector<RowBlock>(static_cast<size_t>(optimizer.slot_count()),
                              none));
  }

  absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& region, Payload values,
      std::vector<Payload> slots) const override {
    std::vector<RowBlock> of_slots;
    for (const Payload& slot : slots) of_slots.push_back(*Decode(region, slot));
    return std::make_unique<RowStore>(frames_, *Decode(region, values),
                                      std::move(of_slots));
  }

  absl::Status CheckBytes(const Region& region, uint64_t bytes) const override {
    const RowBlock block{.region = region, .width = width_};
    const auto width = static_cast<int64_t>(width_);
    const int64_t first = region.begin() / width;
    const int64_t last = (region.end() - 1) / width;
    const auto bytes_of = [&](int64_t key) {
      return sizeof(int64_t) + block.Row(key).DenseBytes();
    };
    // The first row and the last one may be smaller; either may be there.
    for (const uint64_t of_first : {uint64_t{0}, bytes_of(first)}) {
      for (const uint64_t of_last : {uint64_t{0}, bytes_of(last)}) {
        const uint64_t fixed =
            RowBlock::kHeader * sizeof(int64_t) + of_first + of_last;
        const uint64_t row = sizeof(int64_t) + width_ * sizeof(float);
        if (bytes >= fixed && (bytes - fixed) % row == 0 &&
            (bytes - fixed) / row <= static_cast<uint64_t>(last - first + 1)) {
          return absl::OkStatus();
        }
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes are no rows of ", region.Text()));
  }

  absl::Status Check(const Region& region, const Payload& values,
                     absl::Span<const Payload> slots) const override {
    SL_ASSIGN_OR_RETURN(const RowBlock block, Decode(region, values));
    for (const Payload& slot : slots) {
      SL_ASSIGN_OR_RETURN(const RowBlock other, Decode(region, slot));
      if (other.rows.size() != block.rows.size() ||
          !std::equal(other.rows.begin(), other.rows.end(), block.rows.begin(),
                      [](const auto& a, const auto& b) {
                        return a.first == b.first;
                      })) {
        return absl::InvalidArgumentError("a slot of other rows");
      }
    }
    return absl::OkStatus();
  }

  Payload ZeroSlot(const Payload& values) const override {
    Payload zeros = Payload::Copy(values.data(), values.size());
    int64_t rows = 0;
    std::memcpy(&rows, values.data() + 2 * sizeof(rows), sizeof(rows));
    const size_t keys =
        (RowBlock::kHeader + static_cast<size_t>(rows)) * sizeof(rows);
    std::memset(zeros.MutableData() + keys, 0, zeros.size() - keys);
    return zeros;
  }

  const TensorForm& form() const override { return form_; }

 private:
  absl::StatusOr<RowBlock> Decode(const Region& region,
                                  const Payload& payload) const {
    return RowBlock::Decode(payload, region, width_);
  }

  class Form : public TensorForm {
   public:
    explicit Form(size_t width) : width_(width) {}

    bool IsFloats() const override { return false; }
    absl::StatusOr<Payload> Join(
        const Region& region, absl::Span<const Piece> pieces) const override {
      RowBlock whole{.region = region, .width = width_};
      for (const Piece& piece : pieces) {
        Payload bytes = Payload::Allocate(piece.bytes);
        SL_RETURN_IF_ERROR(piece.read(0, {bytes.MutableData(), bytes.size()}));
        const absl::StatusOr<RowBlock> block =
            RowBlock::Decode(bytes, piece.region, width_);
        if (!block.ok()) return absl::DataLossError(block.status().message());
        whole.Take(*block);
      }
      return whole.Encode();
    }

   private:
    const size_t width_;
  };

  const size_t width_;
  const RowFrames frames_;
  const Form form_;
};

}  // namespace slackline
