// Where LibTorch has no CUDA: says so, and what to do.
#include "absl/strings/str_cat.h"
#include "worker/model/cuda_model.h"

namespace slackline {

absl::Status CheckCudaModelDevice(int gpu) {
  return absl::FailedPreconditionError(absl::StrCat(
      "worker device CUDA, gpu ", gpu,
      ": this program was built without GPU code, because the CUDA Toolkit or "
      "a LibTorch with CUDA was missing; build it with "
      "tools/build_with_pytorch.sh (see docs/manual/gpu.md), or use "
      "device: CPU"));
}

absl::StatusOr<std::unique_ptr<Model>> CreateCudaModel(
    const config::Model&, int64_t, int64_t, const ModelOptions& options) {
  return CheckCudaModelDevice(options.gpu);
}

}  // namespace slackline
