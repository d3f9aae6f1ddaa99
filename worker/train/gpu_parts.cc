#include "worker/train/gpu_parts.h"

#include "worker/collective/nccl_collective.h"
#include "worker/gpu/cuda_memory.h"

namespace slackline {

void PrepareGpuGroups(config::Collective::Algorithm algorithm) {
  SetNcclAlgorithm(algorithm);
}

absl::StatusOr<std::unique_ptr<FloatMemory>> CreateGpuMemory(
    CudaModel& model, absl::Duration timeout) {
  return CudaMemory::Create(model.compute_stream(), timeout);
}

absl::StatusOr<std::unique_ptr<Collective>> ConnectGpuGroup(
    CudaModel& model, const GlooCollective::Options& options) {
  return NcclCollective::Create({.rank = options.rank,
                                 .world_size = options.world_size,
                                 .gpu = model.gpu(),
                                 .stream = model.compute_stream(),
                                 .group = options.group,
                                 .connect_timeout = options.connect_timeout,
                                 .timeout = options.timeout,
                                 .keep_trying = options.keep_trying,
                                 .store = options.store});
}

}  // namespace slackline
