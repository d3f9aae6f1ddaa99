// FloatMemory on a GPU: its work goes on one stream, that of the computation.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "absl/time/time.h"
#include "worker/gpu/cuda_handles.h"
#include "worker/memory/float_memory.h"

namespace slackline {

// The calling thread's current GPU is always that of the stream.
class CudaMemory final : public FloatMemory {
 public:
  // `stream` stays the caller's and outlives this and its arrays. Waits end
  // with DeadlineExceeded after `timeout`.
  static absl::StatusOr<std::unique_ptr<CudaMemory>> Create(
      cudaStream_t stream, absl::Duration timeout);

  absl::StatusOr<Array> Allocate(size_t elements) override;
  absl::Status Copy(const void* from, absl::Span<float> to) override;
  absl::Status CopyIn(const void* from, absl::Span<float> to) override;
  absl::Status CopyOut(absl::Span<const float> from, void* to) override;
  absl::StatusOr<bool> AllFinite(
      absl::Span<const absl::Span<const float>> arrays) override;
  absl::Status Apply(const Optimizer& optimizer,
                     const Optimizer::ApplyArgs& args) override;

 private:
  CudaMemory(cudaStream_t stream, absl::Duration timeout, CudaEvent done,
             DeviceMemory found)
      : stream_(stream),
        timeout_(timeout),
        done_(std::move(done)),
        found_(std::move(found)) {}

  const cudaStream_t stream_;
  const absl::Duration timeout_;
  const CudaEvent done_;
  const DeviceMemory found_;  // One int: whether AllFinite() found something.
};

}  // namespace slackline
