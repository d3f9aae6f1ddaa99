// One shard: its values, its optimizer slots, and its version.
//
// A version, slots included, is immutable once somebody holds a reference to
// it: Apply() writes in place when nobody does and the values are where they
// should be, else into other buffers.
// So a pull reply, a checkpoint or a hand-over is one version, never a mixture.
// Thread-compatible; references may be dropped on any thread.
#pragma once

#include <vector>

#include "common/optim/optimizer.h"
#include "common/payload.h"
#include "common/view/shard_map.h"

namespace slackline {

class Shard {
 public:
  // Initial values of the table's elements [range.begin, range.end), slots
  // zero.
  Shard(const wire::Table& table, const ShardRange& range, uint64_t seed,
        const Optimizer& optimizer);

  // What another shard was. `values` and each of `slots` has range.bytes().
  Shard(const ShardRange& range, Version version, Payload values,
        std::vector<Payload> slots);

  const ShardRange& range() const { return range_; }
  Version version() const { return version_; }
  // References to the present version.
  const Payload& values() const { return values_; }
  const std::vector<Payload>& slots() const { return slots_; }

  // Keeps the elements of `kept`, a beginning of the range, and returns the
  // others, of the same version, as the shard `part`. Copies both.
  Shard Split(const ShardRange& kept, const ShardRange& part);

  // Becomes what a worker's copy of it is, which steps by all-reduce made.
  // `values` and each of `slots`, as many as there are, has range().bytes().
  void Install(Version version, Payload values, std::vector<Payload> slots);

  // One update from the sum of `gradients`, in their order, times `scale`. Each
  // has range().bytes() bytes. One pass over gradients, values and slots.
  // `memory` is what a next version is in, and the sum, which is also returned
  // in `*sum` if that is not null.
  void Apply(const Optimizer& optimizer, absl::Span<const Payload> gradients,
             float scale, const StepNumbers& numbers, PayloadMemory& memory,
             Payload* sum = nullptr);

 private:
  // Memory for the next version that nobody reads any more.
  Payload TakeFreeBuffer(PayloadMemory& memory);
  // Makes the slots writable, by a copy where somebody reads them.
  void OwnSlots();

  ShardRange range_;
  Version version_ = 0;
  Payload values_;
  // They are in memory that Apply() was given.
  bool placed_ = false;
  std::vector<Payload> slots_;
  // Earlier buffers that readers may still hold; reused when they let go.
  std::vector<Payload> retired_;
};

// One update from the gradients of some of the `workers`: their mean, and of
// the rate of `numbers` the part of these workers. So one clock of all workers
// moves the model by the same amount in every mode, and the optimizer's state,
// which is made of gradients, has the same size in every mode and is of use
// after the mode has changed.
void ApplyMean(Shard& shard, const Optimizer& optimizer,
               absl::Span<const Payload> gradients, int workers,
               const StepNumbers& numbers, PayloadMemory& memory,
               Payload* sum = nullptr);
// The same bits as ApplyMean() of the gradients of all the workers, from their
// sum.
void ApplyMeanOfSum(Shard& shard, const Optimizer& optimizer,
                    const Payload& sum, int workers, const StepNumbers& numbers,
                    PayloadMemory& memory);

}  // namespace slackline
