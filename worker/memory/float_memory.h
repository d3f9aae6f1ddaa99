// Arrays of floats in the memory beside the computation: the host's, or a
// GPU's.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/optim/optimizer.h"

namespace slackline {

// Work is done in the order of the calls, on a GPU beside the caller; what
// fails there is returned by that call or a later one. Arrays that the calls
// name are in this memory unless they say otherwise, and stay until the next
// CopyOut(). Sizes that differ are fatal. Thread-compatible.
class FloatMemory {
 public:
  virtual ~FloatMemory() = default;

  struct Array {
    absl::Span<float> values;
    std::shared_ptr<void> owner;
  };
  // Zeros. ResourceExhausted names the bytes.
  virtual absl::StatusOr<Array> Allocate(size_t elements) = 0;
  // Within this memory; without overlap. `from` has to.size() floats.
  virtual absl::Status Copy(const void* from, absl::Span<float> to) = 0;
  // From the host, whose memory is free to change when this returns.
  virtual absl::Status CopyIn(const void* from, absl::Span<float> to) = 0;
  // To the host, when all work before is done.
  virtual absl::Status CopyOut(absl::Span<const float> from, void* to) = 0;
  // Whether no float of these arrays is a NaN or an infinity, when all work
  // before is done.
  virtual absl::StatusOr<bool> AllFinite(
      absl::Span<const absl::Span<const float>> arrays) = 0;
  // optimizer.Apply(args).
  virtual absl::Status Apply(const Optimizer& optimizer,
                             const Optimizer::ApplyArgs& args) = 0;
};

class HostMemory final : public FloatMemory {
 public:
  absl::StatusOr<Array> Allocate(size_t elements) override;
  absl::Status Copy(const void* from, absl::Span<float> to) override;
  absl::Status CopyIn(const void* from, absl::Span<float> to) override;
  absl::Status CopyOut(absl::Span<const float> from, void* to) override;
  absl::StatusOr<bool> AllFinite(
      absl::Span<const absl::Span<const float>> arrays) override;
  absl::Status Apply(const Optimizer& optimizer,
                     const Optimizer::ApplyArgs& args) override;
};

}  // namespace slackline
