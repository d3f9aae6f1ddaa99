#include "server/shard/shard.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"
#include "common/view/initializer.h"

namespace slackline {
namespace {
// A reader normally lets go before the next version but one is written.
constexpr size_t kRetiredMax = 2;
}  // namespace

Shard::Shard(const wire::Table& table, const ShardRange& range, uint64_t seed,
             const Optimizer& optimizer)
    : range_(range), values_(Payload::Allocate(range.bytes())) {
  InitializeElements(
      table, seed, range.begin,
      absl::MakeSpan(reinterpret_cast<float*>(values_.MutableData()),
                     static_cast<size_t>(range.elements())));
  for (int i = 0; i < optimizer.slot_count(); ++i) {
    slots_.push_back(Payload::Allocate(range.bytes()));
    std::memset(slots_.back().MutableData(), 0, range.bytes());
  }
}

Shard::Shard(const ShardRange& range, Version version, Payload values,
             std::vector<Payload> slots)
    : range_(range),
      version_(version),
      values_(std::move(values)),
      slots_(std::move(slots)) {
  SL_CHECK(values_.size() == range_.bytes(), "values of another size");
}

Shard Shard::Split(const ShardRange& kept, const ShardRange& part) {
  SL_CHECK(kept.begin == range_.begin && kept.end == part.begin &&
               part.end == range_.end,
           "a split does not make the shard's two parts");
  const auto slice = [](const Payload& whole, size_t offset, size_t bytes) {
    return Payload::Copy(whole.data() + offset, bytes);
  };
  std::vector<Payload> part_slots;
  for (Payload& slot : slots_) {
    part_slots.push_back(slice(slot, kept.bytes(), part.bytes()));
    slot = slice(slot, 0, kept.bytes());
  }
  Shard other(part, version_, slice(values_, kept.bytes(), part.bytes()),
              std::move(part_slots));
  values_ = slice(values_, 0, kept.bytes());
  placed_ = false;
  retired_.clear();
  range_ = kept;
  return other;
}

void Shard::Install(Version version, Payload values,
                    std::vector<Payload> slots) {
  SL_CHECK(slots.size() == slots_.size(), "another number of slots");
  // Memory of our own, aligned and writable, and not a frame of the network.
  const auto own = [&](const Payload& payload) {
    SL_CHECK(payload.size() == range_.bytes(), "a tensor of another size");
    return Payload::Copy(payload.data(), payload.size());
  };
  version_ = version;
  values_ = own(values);
  placed_ = false;
  for (size_t i = 0; i < slots.size(); ++i) slots_[i] = own(slots[i]);
  retired_.clear();
}

void Shard::OwnSlots() {
  for (Payload& slot : slots_) {
    if (!slot.unique()) slot = Payload::Copy(slot.data(), slot.size());
  }
}

Payload Shard::TakeFreeBuffer(PayloadMemory& memory) {
  for (size_t i = 0; i < retired_.size(); ++i) {
    if (!retired_[i].unique()) continue;
    Payload free = std::move(retired_[i]);
    retired_.erase(retired_.begin() + i);
    return free;
  }
  return memory.Allocate(range_.bytes());
}

void Shard::Apply(const Optimizer& optimizer,
                  absl::Span<const Payload> gradients, float scale,
                  const StepNumbers& numbers, PayloadMemory& memory,
                  Payload* sum) {
  std::vector<const std::byte*> gradient_data;
  gradient_data.reserve(gradients.size());
  for (const Payload& gradient : gradients) {
    SL_CHECK(gradient.size() == range_.bytes(),
             "gradient size was not checked");
    gradient_data.push_back(gradient.data());
  }
  Optimizer::ApplyArgs args;
  args.in = reinterpret_cast<const float*>(values_.data());
  Payload next;
  if (placed_ && values_.unique()) {
    args.out = reinterpret_cast<float*>(values_.MutableData());
  } else {
    next = TakeFreeBuffer(memory);
    args.out = reinterpret_cast<float*>(next.MutableData());
  }
  OwnSlots();
  for (size_t i = 0; i < slots_.size(); ++i) {
    args.slots[i] = reinterpret_cast<float*>(slots_[i].MutableData());
  }
  args.gradients = gradient_data;
  if (sum != nullptr) {
    *sum = memory.Allocate(range_.bytes());
    args.sum = reinterpret_cast<float*>(sum->MutableData());
  }
  args.elements = static_cast<size_t>(range_.elements());
  args.gradient_scale = scale;
  args.numbers = numbers;
  args.update_count = static_cast<int64_t>(version_) + 1;
  optimizer.Apply(args);
  if (!next.empty()) {
    if (std::exchange(placed_, true)) {
      if (retired_.size() == kRetiredMax) retired_.erase(retired_.begin());
      retired_.push_back(std::move(values_));
    }
    values_ = std::move(next);
  }
  ++version_;
}

namespace {
void ApplyMean(Shard& shard, const Optimizer& optimizer,
               absl::Span<const Payload> parts, double count, int workers,
               StepNumbers numbers, PayloadMemory& memory, Payload* sum) {
  numbers.learning_rate = numbers.learning_rate * count / workers;
  shard.Apply(optimizer, parts, 1.0f / static_cast<float>(count), numbers,
              memory, sum);
}
}  // namespace

void ApplyMean(Shard& shard, const Optimizer& optimizer,
               absl::Span<const Payload> gradients, int workers,
               const StepNumbers& numbers, PayloadMemory& memory,
               Payload* sum) {
  ApplyMean(shard, optimizer, gradients, static_cast<double>(gradients.size()),
            workers, numbers, memory, sum);
}

void ApplyMeanOfSum(Shard& shard, const Optimizer& optimizer,
                    const Payload& sum, int workers, const StepNumbers& numbers,
                    PayloadMemory& memory) {
  ApplyMean(shard, optimizer, absl::MakeConstSpan(&sum, 1), workers, workers,
            numbers, memory, nullptr);
}

}  // namespace slackline
