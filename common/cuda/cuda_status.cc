#include "common/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

absl::StatusCode CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::StatusCode::kResourceExhausted;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorInvalidConfiguration:
      return absl::StatusCode::kInvalidArgument;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  int device = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess;
  return absl::Status(
      CodeOf(error),
      absl::StrCat(call, known ? absl::StrCat(" on GPU ", device) : "", ": ",
                   cudaGetErrorString(error), " (", cudaGetErrorName(error),
                   ")",
                   // CUDA says so as well where there is none.
                   error == cudaErrorInsufficientDriver
                       ? "; install a driver, or a newer one"
                       : ""));
}

}  // namespace slackline
