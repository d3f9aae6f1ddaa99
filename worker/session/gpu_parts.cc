#include "worker/session/gpu_parts.h"

#include <memory>
#include <utility>

#include "common/status.h"
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

absl::StatusOr<ConnectedGroup> ConnectGpuGroup(const ParameterMemory::Gpu& gpu,
                                               const GroupOptions& options) {
  SL_ASSIGN_OR_RETURN(
      std::unique_ptr<Collective> collective,
      NcclCollective::Create({.rank = options.rank,
                              .world_size = options.world_size,
                              .gpu = gpu.index,
                              .stream = gpu.stream,
                              .group = options.group,
                              .connect_timeout = options.connect_timeout,
                              .timeout = options.timeout,
                              .keep_trying = options.keep_trying,
                              .store = options.store}));
  return ConnectedGroup{
      .collective = std::move(collective), .over = "NCCL", .why = ""};
}

}  // namespace slackline
