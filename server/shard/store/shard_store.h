// ShardStore: what a shard keeps of its part of a table: the values and the
// optimizer's state of each of them. It says what the bytes of a gradient mean,
// and does what a gradient does to the values; who may push, when a gradient is
// applied and who gets a copy of the shard is decided above it (ShardMachine,
// ServedShard), without a look into the bytes.
//
// A store is seen from outside as payloads: the values and the optimizer slots,
// as pulls, hand-overs, copies and checkpoints take them; none of them is
// empty. What their bytes are is the store's own; two stores with equal
// payloads are equal. Payloads that a store has given away never change, so who
// reads one has one version.
//
// Whatever needs memory may fail: ResourceExhausted says for how many bytes of
// what there is none, and any other error but InvalidArgument what else the
// device lacks. The job cannot go on with such a shard, and nothing but its
// destructor is called of the store afterwards.
//
// Deterministic: no I/O, threads, time or randomness, and no order of a hash
// map may reach a payload or a sum. Thread-compatible; payloads may be dropped
// on any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/tensor_form.h"
#include "common/optim/optimizer.h"
#include "common/optim/update_rule.h"
#include "common/payload.h"
#include "common/region.h"
#include "proto/data.pb.h"
#include "proto/view.pb.h"

namespace slackline {

class ShardStore {
 public:
  virtual ~ShardStore() = default;

  // Shares what it can with this one, until one of the two changes.
  virtual std::unique_ptr<ShardStore> Clone() const = 0;

  // ---- What is kept. A store that keeps it in another form makes the payload
  // when it is asked for.
  virtual const Payload& values() const = 0;
  // There are as many slots as the table's optimizer has.
  virtual const std::vector<Payload>& slots() const = 0;
  // What the pull, which is not one of the optimizer's state, is told of the
  // values: all of them, unless it names some of them in a way that the store
  // knows.
  virtual Payload Pulled(const wire::Pull& /*asked*/) const { return values(); }

  // Becomes this; StoreKind::Check() was asked, and there are as many slots.
  virtual absl::Status Install(const Payload& values,
                               absl::Span<const Payload> slots) = 0;
  // Keeps `kept`, a beginning of the shard's region, and returns a store with
  // the rest, which is `part`.
  virtual absl::StatusOr<std::unique_ptr<ShardStore>> Split(
      const Region& kept, const Region& part) = 0;

  // ---- Gradients.
  // InvalidArgument: why the frame of the push is no gradient of this shard. A
  // gradient of another region than the shard's is none, also if it lies within
  // it: the shard may be about to be split.
  virtual absl::Status CheckFrame(const wire::Push& push,
                                  const Payload& frame) const = 0;
  // The gradient that is in a checked frame. InvalidArgument: it is not in the
  // code that it names.
  virtual absl::StatusOr<Payload> GradientIn(const wire::Push& push,
                                             const Payload& frame) const = 0;
  // InvalidArgument: why it is no gradient of this shard.
  virtual absl::Status CheckGradient(const Payload& gradient) const = 0;
  // The floats of a checked gradient, at any alignment, for those who look at
  // its size and for NaNs.
  virtual absl::Span<const std::byte> FloatsOf(
      const Payload& gradient) const = 0;
  // A checked gradient, split as Split() splits the store.
  virtual std::pair<Payload, Payload> SplitGradient(
      const Payload& gradient, const Region& kept,
      const Region& part) const = 0;

  // One update from the sum of checked gradients, in their order, times
  // `scale`.
  struct Update {
    const Optimizer& optimizer;
    absl::Span<const Payload> gradients;  // At least one.
    float scale = 1;
    StepNumbers numbers;
    int64_t count = 1;  // Updates of the shard, with this one.
    // What a next version is in, and the sum.
    PayloadMemory& memory;
    // Gets the sum, without `scale`, as a gradient, unless it is null. The same
    // update from the sum alone gives the same bits.
    Payload* sum = nullptr;
  };
  virtual absl::Status Apply(const Update& update) = 0;
};

// What the stores of a table are. Immutable; any thread may call anything.
class StoreKind {
 public:
  virtual ~StoreKind() = default;

  // A store with the values that the table's initializer names, and slots of
  // zeros.
  virtual absl::StatusOr<std::unique_ptr<ShardStore>> Initial(
      const wire::Table& table, const Region& region, uint64_t seed,
      const Optimizer& optimizer) const = 0;
  // A store with these; Check() was asked.
  virtual absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& region, Payload values,
      std::vector<Payload> slots) const = 0;

  // InvalidArgument: no values, slot or gradient of such a shard has so many
  // bytes. Asked before memory is allocated for what somebody announces.
  virtual absl::Status CheckBytes(const Region& region,
                                  uint64_t bytes) const = 0;
  // InvalidArgument: why these are not the values and slots of such a shard.
  virtual absl::Status Check(const Region& region, const Payload& values,
                             absl::Span<const Payload> slots) const = 0;
  // The slot of zeros that belongs to checked values.
  virtual Payload ZeroSlot(const Payload& values) const = 0;

  // How the payloads are in checkpoints.
  virtual const TensorForm& form() const = 0;
};

// A table on its servers: how it is updated, and what its shards keep.
struct TableRule : UpdateRule {
  std::shared_ptr<const StoreKind> store;
};

}  // namespace slackline
