// DenseStore: a float for each element of the shard, and one for each of its
// optimizer slots. Payloads are these floats, and so are gradients.
//
// Apply() writes in place when nobody holds the values and they are where they
// should be, else into other buffers.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "server/shard/store/shard_store.h"

namespace slackline {

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

std::shared_ptr<const StoreKind> DenseKind();

}  // namespace slackline
