#include "server/shard/shard.h"

#include <utility>

#include "common/status.h"
#include "server/shard/store/dense_store.h"

namespace slackline {

Shard::Shard(const wire::Table& table, const ShardRange& range, uint64_t seed,
             const Optimizer& optimizer)
    : Shard(range, 0, DenseKind()->Initial(table, range, seed, optimizer)) {}

Shard::Shard(const ShardRange& range, Version version, Payload values,
             std::vector<Payload> slots)
    : Shard(range, version,
            DenseKind()->Of(range, std::move(values), std::move(slots))) {
  SL_CHECK(this->values().size() == range_.bytes(), "values of another size");
}

Shard Shard::Split(const ShardRange& kept, const ShardRange& part) {
  SL_CHECK(kept.begin == range_.begin && kept.end == part.begin &&
               part.end == range_.end,
           "a split does not make the shard's two parts");
  Shard other(part, version_, store_->Split(kept, part));
  range_ = kept;
  return other;
}

void Shard::Install(Version version, const Payload& values,
                    absl::Span<const Payload> slots) {
  SL_CHECK(slots.size() == store_->slots().size(), "another number of slots");
  version_ = version;
  store_->Install(values, slots);
}

void Shard::ApplyMean(const Optimizer& optimizer, const Mean& mean,
                      StepNumbers numbers, PayloadMemory& memory,
                      Payload* sum) {
  const double count = mean.count;
  numbers.learning_rate = numbers.learning_rate * count / mean.workers;
  store_->Apply({.optimizer = optimizer,
                 .gradients = mean.parts,
                 .scale = 1.0f / static_cast<float>(count),
                 .numbers = numbers,
                 .count = static_cast<int64_t>(version_) + 1,
                 .memory = memory,
                 .sum = sum});
  ++version_;
}

}  // namespace slackline
