// DenseStore: a float for each element of the shard, and one for each of its
// optimizer slots. Payloads are these floats, and so are gradients.
//
// Apply() writes in place when nobody holds the values and they are where they
// should be, else into other buffers.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/compress/gradient_code.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "common/with_memory.h"
#include "server/shard/store/store_kinds.h"

namespace slackline {
namespace {

// A reader normally lets go before the next version but one is written.
constexpr size_t kRetiredMax = 2;

absl::Status CheckTensor(size_t bytes, size_t of_shard) {
  if (bytes == of_shard) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tensor of ", bytes, " bytes; the shard has ", of_shard));
}

constexpr absl::string_view kState = "its values and optimizer slots";

Payload Zeros(size_t bytes) {
  Payload zeros = Payload::Allocate(bytes);
  std::memset(zeros.MutableData(), 0, bytes);
  return zeros;
}

class DenseStore : public ShardStore {
 public:
  // `values` and each of `slots` has the bytes of the shard.
  DenseStore(Payload values, std::vector<Payload> slots)
      : values_(std::move(values)), slots_(std::move(slots)) {}

  std::unique_ptr<ShardStore> Clone() const override;
  const Payload& values() const override { return values_; }
  const std::vector<Payload>& slots() const override { return slots_; }
  absl::Status Install(const Payload& values,
                       absl::Span<const Payload> slots) override;
  absl::StatusOr<std::unique_ptr<ShardStore>> Split(
      const Region& kept, const Region& part) override;
  absl::Status CheckFrame(const wire::Push& push,
                          const Payload& frame) const override;
  absl::StatusOr<Payload> GradientIn(const wire::Push& push,
                                     const Payload& frame) const override;
  absl::Status CheckGradient(const Payload& gradient) const override;
  absl::Span<const std::byte> FloatsOf(const Payload& gradient) const override {
    return gradient.bytes();
  }
  std::pair<Payload, Payload> SplitGradient(const Payload& gradient,
                                            const Region& kept,
                                            const Region& part) const override;
  // One pass over gradients, values and slots.
  absl::Status Apply(const Update& update) override;

 private:
  size_t elements() const { return values_.size() / sizeof(float); }
  size_t StateBytes() const { return (1 + slots_.size()) * values_.size(); }
  void ApplyOrThrow(const Update& update);
  // Memory for the next version that nobody reads any more.
  Payload TakeFreeBuffer(PayloadMemory& memory);
  // Makes the slots writable, by a copy where somebody reads them.
  void OwnSlots();

  Payload values_;
  // They are in memory that Apply() was given.
  bool placed_ = false;
  std::vector<Payload> slots_;
  // Earlier buffers that readers may still hold; reused when they let go.
  std::vector<Payload> retired_;
};

class Kind : public StoreKind {
 public:
  absl::StatusOr<std::unique_ptr<ShardStore>> Initial(
      const wire::Table& table, const Region& region, uint64_t seed,
      const Optimizer& optimizer) const override {
    const size_t bytes = region.DenseBytes();
    const auto slot_count = static_cast<size_t>(optimizer.slot_count());
    Payload values;
    std::vector<Payload> slots;
    SL_RETURN_IF_ERROR(WithMemory((1 + slot_count) * bytes, kState, [&] {
      values = Payload::Allocate(bytes);
      for (size_t i = 0; i < slot_count; ++i) slots.push_back(Zeros(bytes));
    }));
    InitializeElements(
        table, seed, region.begin(),
        absl::MakeSpan(reinterpret_cast<float*>(values.MutableData()),
                       static_cast<size_t>(region.size())));
    return Of(region, std::move(values), std::move(slots));
  }

  absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& /*region*/, Payload values,
      std::vector<Payload> slots) const override {
    return std::make_unique<DenseStore>(std::move(values), std::move(slots));
  }

  absl::Status CheckBytes(const Region& region, uint64_t bytes) const override {
    return CheckTensor(bytes, region.DenseBytes());
  }

  absl::Status Check(const Region& region, const Payload& values,
                     absl::Span<const Payload> slots) const override {
    SL_RETURN_IF_ERROR(CheckTensor(values.size(), region.DenseBytes()));
    for (const Payload& slot : slots)
      SL_RETURN_IF_ERROR(CheckTensor(slot.size(), region.DenseBytes()));
    return absl::OkStatus();
  }

  Payload ZeroSlot(const Payload& values) const override {
    return Zeros(values.size());
  }

  const TensorForm& form() const override { return FloatsForm(); }
};

std::unique_ptr<ShardStore> DenseStore::Clone() const {
  return std::make_unique<DenseStore>(values_, slots_);
}

absl::Status DenseStore::Install(const Payload& values,
                                 absl::Span<const Payload> slots) {
  // Memory of our own, aligned and writable, and not a frame of the network.
  const auto own = [](const Payload& payload) {
    return Payload::Copy(payload.data(), payload.size());
  };
  placed_ = false;
  retired_.clear();
  return WithMemory(StateBytes(), kState, [&] {
    values_ = own(values);
    for (size_t i = 0; i < slots.size(); ++i) slots_[i] = own(slots[i]);
  });
}

absl::StatusOr<std::unique_ptr<ShardStore>> DenseStore::Split(
    const Region& kept, const Region& part) {
  const auto slice = [](const Payload& whole, size_t offset, size_t bytes) {
    return Payload::Copy(whole.data() + offset, bytes);
  };
  std::vector<Payload> part_slots;
  Payload part_values;
  std::vector<Payload> kept_slots;
  Payload kept_values;
  SL_RETURN_IF_ERROR(WithMemory(StateBytes(), "its two parts", [&] {
    for (const Payload& slot : slots_) {
      part_slots.push_back(slice(slot, kept.DenseBytes(), part.DenseBytes()));
      kept_slots.push_back(slice(slot, 0, kept.DenseBytes()));
    }
    part_values = slice(values_, kept.DenseBytes(), part.DenseBytes());
    kept_values = slice(values_, 0, kept.DenseBytes());
  }));
  values_ = std::move(kept_values);
  slots_ = std::move(kept_slots);
  placed_ = false;
  retired_.clear();
  return std::make_unique<DenseStore>(std::move(part_values),
                                      std::move(part_slots));
}

// ---- Gradients --------------------------------------------------------------

absl::Status DenseStore::CheckFrame(const wire::Push& push,
                                    const Payload& frame) const {
  if (push.has_encoding() &&
      static_cast<size_t>(push.encoding().elements()) != elements()) {
    return absl::InvalidArgumentError(absl::StrCat(
        push.encoding().elements(), " elements, the shard has ", elements()));
  }
  const size_t bytes = CodeOf(push.encoding()).Bytes(elements());
  if (frame.size() == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(frame.size(), " bytes, the shard has ", bytes));
}

absl::StatusOr<Payload> DenseStore::GradientIn(const wire::Push& push,
                                               const Payload& frame) const {
  const GradientCode code = CodeOf(push.encoding());
  if (code.whole()) return frame;
  Payload gradient;
  SL_RETURN_IF_ERROR(WithMemory(values_.size(), "a gradient", [&] {
    gradient = Payload::Allocate(values_.size());
  }));
  const absl::Span<float> floats(
      reinterpret_cast<float*>(gradient.MutableData()), elements());
  if (Decode(code, frame.data(), floats)) return gradient;
  return absl::InvalidArgumentError(
      "its frame is not in the code that it names");
}

absl::Status DenseStore::CheckGradient(const Payload& gradient) const {
  return CheckTensor(gradient.size(), values_.size());
}

std::pair<Payload, Payload> DenseStore::SplitGradient(
    const Payload& gradient, const Region& kept, const Region& part) const {
  return {gradient.Slice(0, kept.DenseBytes()),
          gradient.Slice(kept.DenseBytes(), part.DenseBytes())};
}

// ---- Updates ----------------------------------------------------------------

void DenseStore::OwnSlots() {
  for (Payload& slot : slots_) {
    if (!slot.unique()) slot = Payload::Copy(slot.data(), slot.size());
  }
}

Payload DenseStore::TakeFreeBuffer(PayloadMemory& memory) {
  for (size_t i = 0; i < retired_.size(); ++i) {
    if (!retired_[i].unique()) continue;
    Payload free = std::move(retired_[i]);
    retired_.erase(retired_.begin() + i);
    return free;
  }
  return memory.Allocate(values_.size());
}

absl::Status DenseStore::Apply(const Update& update) {
  return WithMemory(StateBytes(), "its next version",
                    [&] { ApplyOrThrow(update); });
}

void DenseStore::ApplyOrThrow(const Update& update) {
  std::vector<const std::byte*> gradient_data;
  gradient_data.reserve(update.gradients.size());
  for (const Payload& gradient : update.gradients) {
    SL_CHECK(gradient.size() == values_.size(),
             "gradient size was not checked");
    gradient_data.push_back(gradient.data());
  }
  Optimizer::ApplyArgs args;
  args.in = reinterpret_cast<const float*>(values_.data());
  Payload next;
  if (placed_ && values_.unique()) {
    args.out = reinterpret_cast<float*>(values_.MutableData());
  } else {
    next = TakeFreeBuffer(update.memory);
    args.out = reinterpret_cast<float*>(next.MutableData());
  }
  OwnSlots();
  for (size_t i = 0; i < slots_.size(); ++i) {
    args.slots[i] = reinterpret_cast<float*>(slots_[i].MutableData());
  }
  args.gradients = gradient_data;
  if (update.sum != nullptr) {
    *update.sum = update.memory.Allocate(values_.size());
    args.sum = reinterpret_cast<float*>(update.sum->MutableData());
  }
  args.elements = elements();
  args.gradient_scale = update.scale;
  args.numbers = update.numbers;
  args.update_count = update.count;
  update.optimizer.Apply(args);
  if (next.empty()) return;
  if (std::exchange(placed_, true)) {
    if (retired_.size() == kRetiredMax) retired_.erase(retired_.begin());
    retired_.push_back(std::move(values_));
  }
  values_ = std::move(next);
}

}  // namespace

std::shared_ptr<const StoreKind> DenseKind() {
  return std::make_shared<const Kind>();
}

}  // namespace slackline
