#include "server/shard/shard.h"

#include <utility>

#include "common/status.h"

namespace slackline {

absl::StatusOr<Shard> Shard::Split(int64_t at, ShardId part) {
  SL_CHECK(range_.region.CanBeSplit(at), "a split leaves one part empty");
  const auto [kept, rest] = range_.region.SplitAt(at);
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

absl::Status Shard::ApplyMean(const Optimizer& optimizer, const Mean& mean,
                              StepNumbers numbers, PayloadMemory& memory,
                              Payload* sum) {
  const double count = mean.count;
  numbers.learning_rate = numbers.learning_rate * count / mean.workers;
  ++version_;
  return store_->Apply({.optimizer = optimizer,
                        .gradients = mean.parts,
                        .scale = 1.0f / static_cast<float>(count),
                        .numbers = numbers,
                        .count = static_cast<int64_t>(version_),
                        .memory = memory,
                        .sum = sum});
}

}  // namespace slackline
