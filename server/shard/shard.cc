#include "server/shard/shard.h"

#include <utility>

#include "common/status.h"

namespace slackline {

absl::StatusOr<Shard> Shard::Split(int64_t at, ShardId part) {
  SL_CHECK(range_.region.CanBeCut(at), "a split leaves one part empty");
  const auto [kept, rest] = range_.region.Cut(at);
  SL_ASSIGN_OR_RETURN(std::unique_ptr<ShardStore> store,
                      store_->Split(kept, rest));
  range_.region = kept;
  return Shard({.shard = part, .table = range_.table, .region = rest}, version_,
               std::move(store));
}

absl::Status Shard::Install(Version version, const Payload& values,
                            absl::Span<const Payload> slots) {
  SL_CHECK(slots.size() == store_->slots().size(), "another number of slots");
  version_ = version;
  return store_->Install(values, slots);
}

absl::Status Shard::Apply(const Optimizer& optimizer,
                          absl::Span<const Payload> gradients, float scale,
                          const StepNumbers& numbers, PayloadMemory& memory,
                          Payload* sum) {
  ++version_;
  return store_->Apply({.optimizer = optimizer,
                        .gradients = gradients,
                        .scale = scale,
                        .numbers = numbers,
                        .count = static_cast<int64_t>(version_),
                        .memory = memory,
                        .sum = sum});
}

namespace {
absl::Status ApplyMean(Shard& shard, const Optimizer& optimizer,
                       absl::Span<const Payload> parts, double count,
                       int workers, StepNumbers numbers, PayloadMemory& memory,
                       Payload* sum) {
  numbers.learning_rate = numbers.learning_rate * count / workers;
  return shard.Apply(optimizer, parts, 1.0f / static_cast<float>(count),
                     numbers, memory, sum);
}
}  // namespace

absl::Status ApplyMean(Shard& shard, const Optimizer& optimizer,
                       absl::Span<const Payload> gradients, int workers,
                       const StepNumbers& numbers, PayloadMemory& memory,
                       Payload* sum) {
  return ApplyMean(shard, optimizer, gradients,
                   static_cast<double>(gradients.size()), workers, numbers,
                   memory, sum);
}

absl::Status ApplyMeanOfSum(Shard& shard, const Optimizer& optimizer,
                            const Payload& sum, int workers,
                            const StepNumbers& numbers, PayloadMemory& memory) {
  return ApplyMean(shard, optimizer, absl::MakeConstSpan(&sum, 1), workers,
                   workers, numbers, memory, nullptr);
}

}  // namespace slackline
