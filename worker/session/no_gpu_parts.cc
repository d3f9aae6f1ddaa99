#include "worker/session/gpu_parts.h"

namespace slackline {
namespace {

absl::Status Refused() {
  return absl::FailedPreconditionError(
      "this build has no NCCL, so workers on GPUs cannot all-reduce: install "
      "NCCL and the CUDA Toolkit and build again, or use bsp, ssp or asp");
}

}  // namespace

// Over servers GPUs need none of this.
void PrepareGpuGroups(config::Collective::Algorithm /*algorithm*/) {}

absl::StatusOr<std::unique_ptr<FloatMemory>> CreateGpuMemory(
    const ParameterMemory::Gpu& /*gpu*/, absl::Duration /*timeout*/) {
  return Refused();
}

absl::StatusOr<ConnectedGroup> ConnectGpuGroup(
    const ParameterMemory::Gpu& /*gpu*/, const GroupOptions& /*options*/) {
  return Refused();
}

}  // namespace slackline
