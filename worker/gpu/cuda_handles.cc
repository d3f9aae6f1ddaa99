#include "worker/gpu/cuda_handles.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/cuda/cuda_status.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {
constexpr absl::Duration kWatch = absl::Microseconds(100);
constexpr absl::Duration kNap = absl::Microseconds(20);
}  // namespace

absl::Status CheckGpu(int gpu) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // Else a later call would report it as its own.
    return absl::FailedPreconditionError(absl::StrCat(
        "worker device CUDA, gpu ", gpu,
        ": CUDA finds no GPU on this host: ", cudaGetErrorString(error),
        "; check it with nvidia-smi, or use device: CPU"));
  }
  if (gpu < 0 || gpu >= count) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker device CUDA, gpu ", gpu, ": CUDA finds ", count, " GPU",
        count == 1 ? "" : "s", " on this host, numbered from 0 to ", count - 1,
        "; correct `gpu` or `count` of the worker group"));
  }
  return absl::OkStatus();
}

absl::Status UseGpu(int gpu) {
  return CudaStatus(cudaSetDevice(gpu), absl::StrCat("use of GPU ", gpu));
}

absl::StatusOr<CudaStream> CreateCudaStream() {
  cudaStream_t stream = nullptr;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 "creation of a stream"));
  return CudaStream(stream);
}

absl::StatusOr<CudaEvent> CreateCudaEvent() {
  cudaEvent_t event = nullptr;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                 "creation of an event"));
  return CudaEvent(event);
}

absl::StatusOr<PinnedMemory> AllocatePinned(size_t bytes) {
  if (bytes == 0) return PinnedMemory();
  void* memory = nullptr;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable),
                 absl::StrCat("allocation of ", bytes, " pinned bytes")));
  return PinnedMemory(memory);
}

absl::StatusOr<DeviceMemory> AllocateOnDevice(size_t bytes) {
  if (bytes == 0) return DeviceMemory();
  void* memory = nullptr;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMalloc(&memory, bytes),
                 absl::StrCat("allocation of ", bytes, " bytes")));
  return DeviceMemory(memory);
}

absl::Status MakeFollow(cudaStream_t earlier, cudaStream_t later,
                        cudaEvent_t event) {
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaEventRecord(event, earlier), "record of an event"));
  return CudaStatus(cudaStreamWaitEvent(later, event, 0),
                    "wait for an event by a stream");
}

absl::Status WaitForEvent(cudaEvent_t event, absl::Duration timeout,
                          absl::string_view what) {
  const absl::Time start = TimeSource().Now();
  while (true) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return CudaStatus(error, what);
    (void)cudaGetLastError();  // "Not ready" counts as one.
    const absl::Duration waited = TimeSource().Now() - start;
    if (waited > timeout) {
      return absl::DeadlineExceededError(absl::StrCat(
          what, ": the GPU is not done after ",
          absl::ToInt64Milliseconds(timeout),
          " ms; look for other programs on it with nvidia-smi, and for "
          "hardware errors (Xid) with dmesg"));
    }
    if (waited > kWatch) absl::SleepFor(kNap);
  }
}

}  // namespace slackline
