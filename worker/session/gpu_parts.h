// What all-reduce needs where models are on GPUs. Builds without CUDA, or
// without NCCL, have these functions too and refuse.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/collective/mesh_collective.h"
#include "worker/memory/float_memory.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

// For main(), before it starts a thread: see SetNcclAlgorithm().
void PrepareGpuGroups(config::Collective::Algorithm algorithm);

// Memory of that GPU; the stream outlives it.
absl::StatusOr<std::unique_ptr<FloatMemory>> CreateGpuMemory(
    const ParameterMemory::Gpu& gpu, absl::Duration timeout);

// Connects such a group over NCCL.
absl::StatusOr<ConnectedGroup> ConnectGpuGroup(const ParameterMemory::Gpu& gpu,
                                               const GroupOptions& options);

}  // namespace slackline
