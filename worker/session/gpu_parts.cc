#include "worker/session/gpu_parts.h"

#include "worker/collective/nccl_collective.h"
#include "worker/gpu/cuda_memory.h"

namespace slackline {

void PrepareGpuGroups(config::Collective::Algorithm algorithm) {
  SetNcclAlgorithm(algorithm);
}

absl::StatusOr<std::unique_ptr<FloatMemory>> CreateGpuMemory(
    const ParameterMemory::Gpu& gpu, absl::Duration timeout) {
  return CudaMemory::Create(gpu.stream, timeout);
}

absl::StatusOr<std::unique_ptr<Collective>> ConnectGpuGroup(
    const ParameterMemory::Gpu& gpu, const GlooCollective::Options& options) {
  return NcclCollective::Create({.rank = options.rank,
                                 .world_size = options.world_size,
                                 .gpu = gpu.index,
                                 .stream = gpu.stream,
                                 .group = options.group,
                                 .connect_timeout = options.connect_timeout,
                                 .timeout = options.timeout,
                                 .keep_trying = options.keep_trying,
                                 .store = options.store});
}

}  // namespace slackline
