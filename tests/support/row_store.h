// A second kind of store: rows by key, in memory, of which those exist that
// somebody has pushed. Behind tests only: it shows what a store of embeddings
// has to bring along, and that nothing above ShardStore knows what is in one.
//
// A shard's region is a run of keys. Values, slots and gradients are payloads
// of one form: RowBlock. A row that is not there is zeros.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/store/shard_store.h"

namespace slackline {

// Some rows of a region, sorted by key: the region's first key, the one behind
// its last, and the number of rows, then their keys, then their floats.
struct RowBlock {
  Region region;
  std::map<int64_t, std::vector<float>> rows = {};

  static constexpr size_t kHeader = 3;  // Numbers before the keys.

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

  // Of these keys, in rows of `width`.
  static absl::StatusOr<RowBlock> Decode(const Payload& payload,
                                         const Region& region, size_t width) {
    const auto number = [&](size_t i) {
      int64_t value = 0;
      std::memcpy(&value, payload.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    const size_t row_bytes = sizeof(int64_t) + width * sizeof(float);
    if (payload.size() < kHeader * sizeof(int64_t) ||
        Region(number(0), number(1)) != region) {
      return absl::InvalidArgumentError(
          absl::StrCat("no rows of the keys ", region.Text()));
    }
    const size_t bytes = payload.size() - kHeader * sizeof(int64_t);
    if (bytes % row_bytes != 0 ||
        static_cast<uint64_t>(number(2)) != bytes / row_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          number(2), " rows in ", bytes, " bytes, of ", row_bytes, " each"));
    }
    const size_t count = bytes / row_bytes;
    RowBlock block{.region = region};
    const std::byte* floats =
        payload.data() + (kHeader + count) * sizeof(int64_t);
    Region left = region;
    for (size_t i = 0; i < count; ++i) {
      const int64_t key = number(kHeader + i);
      if (key < left.begin() || key >= left.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("key ", key, " is outside ", left.Text()));
      }
      std::vector<float>& row = block.rows[key];
      row.resize(width);
      std::memcpy(row.data(), floats, width * sizeof(float));
      floats += width * sizeof(float);
      left = left.SplitAt(key + 1).second;
    }
    return block;
  }

  // Takes the rows of `part`, an end of the region, away.
  RowBlock SplitOff(const Region& part) {
    RowBlock rest{.region = part};
    for (auto row = rows.lower_bound(part.begin()); row != rows.end();)
      rest.rows.insert(rows.extract(row++));
    region = region.SplitAt(part.begin()).first;
    return rest;
  }
};

class RowStore : public ShardStore {
 public:
  RowStore(size_t width, RowBlock values, std::vector<RowBlock> slots)
      : width_(width), rows_(std::move(values)), of_slots_(std::move(slots)) {}

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

  absl::Status Install(const Payload& values,
                       absl::Span<const Payload> slots) override {
    rows_ = *Decode(values);
    for (size_t i = 0; i < slots.size(); ++i) of_slots_[i] = *Decode(slots[i]);
    Changed();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ShardStore>> Split(
      const Region& /*kept*/, const Region& part) override {
    std::vector<RowBlock> rest;
    for (RowBlock& slot : of_slots_) rest.push_back(slot.SplitOff(part));
    Changed();
    return std::make_unique<RowStore>(width_, rows_.SplitOff(part),
                                      std::move(rest));
  }

  absl::Status CheckFrame(const wire::Push& push,
                          const Payload& frame) const override {
    if (push.has_encoding()) {
      return absl::InvalidArgumentError("rows come as they are, in no code");
    }
    return CheckGradient(frame);
  }
  absl::StatusOr<Payload> GradientIn(const wire::Push& /*push*/,
                                     const Payload& frame) const override {
    return frame;
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
                                            const Region& /*kept*/,
                                            const Region& part) const override {
    RowBlock block = *Decode(gradient);
    const RowBlock rest = block.SplitOff(part);
    return {block.Encode(), rest.Encode()};
  }

  absl::Status Apply(const Update& update) override {
    RowBlock sum{.region = rows_.region};
    for (const Payload& gradient : update.gradients) {
      const RowBlock block = *Decode(gradient);
      for (const auto& [key, row] : block.rows) {
        const auto [at, added] = sum.rows.try_emplace(key, row);
        for (size_t i = 0; !added && i < width_; ++i) at->second[i] += row[i];
      }
    }
    for (const auto& [key, gradient] : sum.rows) {
      const auto* const bytes =
          reinterpret_cast<const std::byte*>(gradient.data());
      Optimizer::ApplyArgs args;
      args.in = args.out = FindOrAdd(&rows_, key);
      for (size_t i = 0; i < of_slots_.size(); ++i)
        args.slots[i] = FindOrAdd(&of_slots_[i], key);
      args.gradients = absl::MakeConstSpan(&bytes, 1);
      args.elements = width_;
      args.gradient_scale = update.scale;
      args.numbers = update.numbers;
      args.update_count = update.count;
      update.optimizer.Apply(args);
    }
    if (update.sum != nullptr) *update.sum = sum.Encode();
    Changed();
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<RowBlock> Decode(const Payload& payload) const {
    return RowBlock::Decode(payload, rows_.region, width_);
  }
  float* FindOrAdd(RowBlock* block, int64_t key) const {
    std::vector<float>& row = block->rows[key];
    row.resize(width_);
    return row.data();
  }
  void Changed() {
    values_ = Payload();
    slots_.clear();
  }

  size_t width_;
  RowBlock rows_;
  std::vector<RowBlock> of_slots_;
  // As payloads, if somebody has asked for them since the last change.
  mutable Payload values_;
  mutable std::vector<Payload> slots_;
};

class RowKind : public StoreKind {
 public:
  explicit RowKind(size_t width) : width_(width) {}

  absl::StatusOr<std::unique_ptr<ShardStore>> Initial(
      const wire::Table& /*table*/, const Region& region, uint64_t /*seed*/,
      const Optimizer& optimizer) const override {
    const RowBlock none{.region = region};
    return std::make_unique<RowStore>(
        width_, none,
        std::vector<RowBlock>(static_cast<size_t>(optimizer.slot_count()),
                              none));
  }

  absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& region, Payload values,
      std::vector<Payload> slots) const override {
    std::vector<RowBlock> of_slots;
    for (const Payload& slot : slots) of_slots.push_back(*Decode(region, slot));
    return std::make_unique<RowStore>(width_, *Decode(region, values),
                                      std::move(of_slots));
  }

  absl::Status CheckBytes(const Region& region, uint64_t bytes) const override {
    const uint64_t header = RowBlock::kHeader * sizeof(int64_t);
    const uint64_t row = sizeof(int64_t) + width_ * sizeof(float);
    if (bytes >= header && (bytes - header) % row == 0 &&
        (bytes - header) / row <= static_cast<uint64_t>(region.size())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        bytes, " bytes; ", header, " and ", row, " for each of at most ",
        region.size(), " rows are required"));
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
    const size_t floats = static_cast<size_t>(rows) * width_ * sizeof(float);
    std::memset(zeros.MutableData() + zeros.size() - floats, 0, floats);
    return zeros;
  }

 private:
  absl::StatusOr<RowBlock> Decode(const Region& region,
                                  const Payload& payload) const {
    return RowBlock::Decode(payload, region, width_);
  }

  const size_t width_;
};

}  // namespace slackline
