#include "python/bindings/errors.h"
#include "python/bindings/gpu_parameters.h"

namespace slackline::python {

bool HasGpuCode() { return false; }

absl::Status CheckGpuIsThere(int /*gpu*/) {
  return absl::FailedPreconditionError(
      "this build of slackline has no GPU code, because the CUDA Toolkit or "
      "NCCL was missing; install both and build it again");
}

std::shared_ptr<Parameters> MakeGpuParameters(std::vector<Table> /*tables*/,
                                              const GpuOptions& options) {
  ThrowIfBad(CheckGpuIsThere(options.gpu));
  return nullptr;
}

}  // namespace slackline::python
