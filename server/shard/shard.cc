#include "server/shard/shard.h"

#include <utility>

#include "common/status.h"
#include "server/shard/store/dense_store.h"

namespace slackline {

Shard::Shard(const wire::Table& table, const ShardRange& range, uint64_t seed,
             const Optimizer& optimizer)
    : Shard(range, 0,
            DenseKind()->Initial(table, range.region, seed, optimizer)) {}

Shard::Shard(const ShardRange& range, Version version, Payload values,
             std::vector<Payload> slots)
    : Shard(
          range, version,
          DenseKind()->Of(range.region, std::move(values), std::move(slots))) {
  SL_CHECK(this->values().size() == range_.region.DenseBytes(),
           "values of another size");
}

Shard Shard::Split(int64_t at, ShardId part) {
  SL_CHECK(range_.region.CanBeCut(at), "a split leaves one part empty");
  const auto [kept, rest] = range_.region.Cut(at);
  Shard other({.shard = part, .table = range_.table, .region = rest}, version_,
              store_->Split(kept, rest));
  range_.region = kept;
  return other;
}

void Shard::Install(Version version, const Payload& values,
                    absl::Span<const Payload> slots) {
  SL_CHECK(slots.size() == store_->slots().size(), "another number of slots");
  version_ = version;
  store_->Install(values, slots);
}

void Shard::Apply(const Optimizer& optimizer,
                  absl::Span<const Payload> gradients, float scale,
                  const StepNumbers& numbers, PayloadMemory& memory,
                  Payload* sum) {
  store_->Apply({.optimizer = optimizer,
                 .gradients = gradients,
                 .scale = scale,
                 .numbers = numbers,
                 .count = static_cast<int64_t>(version_) + 1,
                 .memory = memory,
                 .sum = sum});
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
