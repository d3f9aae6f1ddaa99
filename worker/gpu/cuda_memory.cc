#include "worker/gpu/cuda_memory.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/optim/optimizer_cuda.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(
    cudaStream_t stream, absl::Duration timeout) {
  SL_ASSIGN_OR_RETURN(CudaEvent done, CreateCudaEvent());
  return std::unique_ptr<CudaMemory>(
      new CudaMemory(stream, timeout, std::move(done)));
}

absl::StatusOr<FloatMemory::Array> CudaMemory::Allocate(size_t elements) {
  const size_t bytes = elements * sizeof(float);
  SL_ASSIGN_OR_RETURN(DeviceMemory memory, AllocateOnDevice(bytes));
  auto* const values = static_cast<float*>(memory.get());
  if (bytes > 0) {
    SL_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(values, 0, bytes, stream_),
                   absl::StrCat("clearing of ", bytes, " bytes on the GPU")));
  }
  return Array{.values = absl::MakeSpan(values, elements),
               .owner = std::make_shared<DeviceMemory>(std::move(memory))};
}

absl::Status CudaMemory::Copy(const void* from, absl::Span<float> to) {
  if (to.empty()) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float),
                                    cudaMemcpyDeviceToDevice, stream_),
                    "a copy within the GPU");
}

absl::Status CudaMemory::CopyIn(const void* from, absl::Span<float> to) {
  if (to.empty()) return absl::OkStatus();
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(to.data(), from, to.size() * sizeof(float),
                                 cudaMemcpyHostToDevice, stream_),
                 "a copy to the GPU"));
  SL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(done_.get(), stream_),
                                "an event behind a copy to the GPU"));
  return WaitForEvent(done_.get(), timeout_, "a copy to the GPU");
}

absl::Status CudaMemory::CopyOut(absl::Span<const float> from, void* to) {
  if (from.empty()) return absl::OkStatus();
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(float),
                                 cudaMemcpyDeviceToHost, stream_),
                 "a copy from the GPU"));
  SL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(done_.get(), stream_),
                                "an event behind a copy from the GPU"));
  return WaitForEvent(done_.get(), timeout_, "a copy from the GPU");
}

absl::Status CudaMemory::Apply(const Optimizer& optimizer,
                               const Optimizer::ApplyArgs& args) {
  return ApplyAsync(optimizer, args, stream_);
}

}  // namespace slackline
