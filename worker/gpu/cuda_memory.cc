#include "worker/gpu/cuda_memory.h"

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/optim/finite_cuda.h"
#include "common/optim/optimizer_cuda.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<CudaMemory>> CudaMemory::Create(
    cudaStream_t stream, absl::Duration timeout) {
  SL_ASSIGN_OR_RETURN(CudaEvent done, CreateCudaEvent());
  SL_ASSIGN_OR_RETURN(DeviceMemory found, AllocateOnDevice(sizeof(int)));
  return std::unique_ptr<CudaMemory>(
      new CudaMemory(stream, timeout, std::move(done), std::move(found)));
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

absl::StatusOr<bool> CudaMemory::AllFinite(
    absl::Span<const absl::Span<const float>> arrays) {
  auto* const found = static_cast<int*>(found_.get());
  SL_RETURN_IF_ERROR(CudaStatus(cudaMemsetAsync(found, 0, sizeof(int), stream_),
                                "clearing of a flag on the GPU"));
  for (const absl::Span<const float> array : arrays) {
    SL_RETURN_IF_ERROR(CudaStatus(
        optim::FindNonfiniteAsync(array.data(), array.size(), found, stream_),
        "a search for NaNs on the GPU"));
  }
  int any = 0;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(&any, found, sizeof(int),
                                 cudaMemcpyDeviceToHost, stream_),
                 "a copy from the GPU"));
  SL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(done_.get(), stream_),
                                "an event behind a search for NaNs"));
  SL_RETURN_IF_ERROR(
      WaitForEvent(done_.get(), timeout_, "a search for NaNs on the GPU"));
  return any == 0;
}

absl::Status CudaMemory::Apply(const Optimizer& optimizer,
                               const Optimizer::ApplyArgs& args) {
  return ApplyAsync(optimizer, args, stream_);
}

}  // namespace slackline
