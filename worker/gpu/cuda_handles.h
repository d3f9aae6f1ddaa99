// Streams, events and memory of the CUDA runtime that free themselves, and
// waiting with a deadline.
//
// Nothing here changes the calling thread's current GPU except UseGpu().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace slackline {

// FailedPrecondition unless `gpu` is the index of a GPU that CUDA can use; says
// how many there are.
absl::Status CheckGpu(int gpu);
// Makes `gpu` the calling thread's current GPU.
absl::Status UseGpu(int gpu);

// Move-only owner of a CUDA handle.
template <typename Handle, cudaError_t (*kDestroy)(Handle)>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(Handle handle) : handle_(handle) {}
  CudaHandle(CudaHandle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)) {}
  CudaHandle& operator=(CudaHandle other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~CudaHandle() {
    if (handle_ != nullptr) (void)kDestroy(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};
using CudaStream = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using CudaEvent = CudaHandle<cudaEvent_t, cudaEventDestroy>;
using PinnedMemory = CudaHandle<void*, cudaFreeHost>;
using DeviceMemory = CudaHandle<void*, cudaFree>;

// On the current GPU. No bytes: no memory. ResourceExhausted names the bytes.
absl::StatusOr<CudaStream> CreateCudaStream();  // Beside the default stream.
absl::StatusOr<CudaEvent> CreateCudaEvent();    // Without timing.
absl::StatusOr<PinnedMemory> AllocatePinned(size_t bytes);
absl::StatusOr<DeviceMemory> AllocateOnDevice(size_t bytes);

// What is put on `later` from now on begins after what is on `earlier` now.
// `event` serves for that and is free again when this returns.
absl::Status MakeFollow(cudaStream_t earlier, cudaStream_t later,
                        cudaEvent_t event);

// Returns when what `event` was recorded behind is done. Watches for some
// microseconds before it naps: many waits are shorter than a wake-up.
// DeadlineExceeded after `timeout`, naming `what`, and what CUDA reports.
absl::Status WaitForEvent(cudaEvent_t event, absl::Duration timeout,
                          absl::string_view what);

}  // namespace slackline
