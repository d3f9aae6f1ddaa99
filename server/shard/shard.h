// One shard: which part of which table it is, its version, and what it keeps.
//
// A version, slots included, is immutable once somebody holds a reference to
// it. So a pull reply, a checkpoint or a hand-over is one version, never a
// mixture. Thread-compatible; references may be dropped on any thread. A copy
// shares what it can until one of the two changes.
#pragma once

#include <memory>
#include <vector>

#include "common/optim/optimizer.h"
#include "common/payload.h"
#include "common/view/shard_map.h"
#include "server/shard/store/shard_store.h"

namespace slackline {

class Shard {
 public:
  Shard(const ShardRange& range, Version version,
        std::unique_ptr<ShardStore> store)
      : range_(range), version_(version), store_(std::move(store)) {}
  Shard(const Shard& other)
      : Shard(other.range_, other.version_, other.store_->Clone()) {}
  Shard(Shard&&) = default;
  Shard& operator=(const Shard& other) { return *this = Shard(other); }
  Shard& operator=(Shard&&) = default;

  const ShardRange& range() const { return range_; }
  Version version() const { return version_; }
  const ShardStore& store() const { return *store_; }
  // References to the present version.
  const Payload& values() const { return store_->values(); }
  const std::vector<Payload>& slots() const { return store_->slots(); }

  // ---- Errors are those of the store: after one of them the shard is of no
  // more use.
  // Keeps what is before `at`, which is inside, and returns the rest, of the
  // same version, as the shard `part`. Copies both.
  absl::StatusOr<Shard> Split(int64_t at, ShardId part);

  // Becomes what a worker's copy of it is, which steps by all-reduce made.
  // Values and slots were checked, and `slots` are as many as there are.
  absl::Status Install(Version version, const Payload& values,
                       absl::Span<const Payload> slots);

  // Gradients of some of the `workers`, which were checked: each of `parts` is
  // one, or the only one is the sum of `count`, which gives the same bits.
  struct Mean {
    absl::Span<const Payload> parts;
    int count = 0;
    int workers = 0;
  };
  // One update from their mean, summed in the order of `parts`, and of the rate
  // of `numbers` the part of these workers. So one clock of all workers moves
  // the model by the same amount in every mode, and the optimizer's state,
  // which is made of gradients, has the same size in every mode and is of use
  // after the mode has changed. `memory` is what a next version is in, and the
  // sum, which is also returned in `*sum` if that is not null.
  absl::Status ApplyMean(const Optimizer& optimizer, const Mean& mean,
                         StepNumbers numbers, PayloadMemory& memory,
                         Payload* sum = nullptr);

 private:
  ShardRange range_;
  Version version_ = 0;
  std::unique_ptr<ShardStore> store_;
};

}  // namespace slackline
