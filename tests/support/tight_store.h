// A kind of store whose memory can be refused, as that of a GPU or a small
// machine is: dense stores that ask first.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/store/store_kinds.h"

namespace slackline {

class TightKind : public StoreKind {
 public:
  // So many requests for memory are refused, after so many that are granted.
  mutable int refusals = 0;
  mutable int granted_before = 0;
  // How often a store was asked for anything after it had failed.
  mutable int asked_after_failure = 0;

  absl::StatusOr<std::unique_ptr<ShardStore>> Initial(
      const wire::Table& table, const Region& region, uint64_t seed,
      const Optimizer& optimizer) const override {
    SL_RETURN_IF_ERROR(Ask(region.DenseBytes()));
    return Wrapped(dense_->Initial(table, region, seed, optimizer));
  }
  absl::StatusOr<std::unique_ptr<ShardStore>> Of(
      const Region& region, Payload values,
      std::vector<Payload> slots) const override {
    SL_RETURN_IF_ERROR(Ask(region.DenseBytes()));
    return Wrapped(dense_->Of(region, std::move(values), std::move(slots)));
  }
  absl::Status CheckBytes(const Region& region, uint64_t bytes) const override {
    return dense_->CheckBytes(region, bytes);
  }
  absl::Status Check(const Region& region, const Payload& values,
                     absl::Span<const Payload> slots) const override {
    return dense_->Check(region, values, slots);
  }
  Payload ZeroSlot(const Payload& values) const override {
    return dense_->ZeroSlot(values);
  }
  const TensorForm& form() const override { return dense_->form(); }

 private:
  class Store : public ShardStore {
   public:
    Store(const TightKind* kind, std::unique_ptr<ShardStore> dense)
        : kind_(*kind), dense_(std::move(dense)) {}

    std::unique_ptr<ShardStore> Clone() const override {
      return std::make_unique<Store>(&kind_, dense_->Clone());
    }
    const Payload& values() const override { return dense_->values(); }
    const std::vector<Payload>& slots() const override {
      return dense_->slots();
    }
    absl::Status Install(const Payload& values,
                         absl::Span<const Payload> slots) override {
      SL_RETURN_IF_ERROR(Ask());
      return dense_->Install(values, slots);
    }
    absl::StatusOr<std::unique_ptr<ShardStore>> Split(
        const Region& kept, const Region& part) override {
      SL_RETURN_IF_ERROR(Ask());
      return kind_.Wrapped(dense_->Split(kept, part));
    }
    absl::Status CheckFrame(const wire::Push& push,
                            const Payload& frame) const override {
      Count();
      return dense_->CheckFrame(push, frame);
    }
    absl::StatusOr<Payload> GradientIn(const wire::Push& push,
                                       const Payload& frame) const override {
      Count();
      return dense_->GradientIn(push, frame);
    }
    absl::Status CheckGradient(const Payload& gradient) const override {
      Count();
      return dense_->CheckGradient(gradient);
    }
    absl::Span<const std::byte> FloatsOf(
        const Payload& gradient) const override {
      Count();
      return dense_->FloatsOf(gradient);
    }
    std::pair<Payload, Payload> SplitGradient(
        const Payload& gradient, const Region& kept,
        const Region& part) const override {
      Count();
      return dense_->SplitGradient(gradient, kept, part);
    }
    absl::Status Apply(const Update& update) override {
      SL_RETURN_IF_ERROR(Ask());
      return dense_->Apply(update);
    }

   private:
    void Count() const { kind_.asked_after_failure += failed_; }
    absl::Status Ask() {
      Count();
      const absl::Status got = kind_.Ask(dense_->values().size());
      failed_ |= !got.ok();
      return got;
    }

    const TightKind& kind_;
    std::unique_ptr<ShardStore> dense_;
    bool failed_ = false;
  };

  absl::Status Ask(size_t bytes) const {
    if (refusals == 0) return absl::OkStatus();
    if (granted_before > 0) {
      --granted_before;
      return absl::OkStatus();
    }
    --refusals;
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes"));
  }
  absl::StatusOr<std::unique_ptr<ShardStore>> Wrapped(
      absl::StatusOr<std::unique_ptr<ShardStore>> dense) const {
    SL_RETURN_IF_ERROR(dense.status());
    return std::make_unique<Store>(this, *std::move(dense));
  }

  const std::shared_ptr<const StoreKind> dense_ = DenseKind();
};

}  // namespace slackline
