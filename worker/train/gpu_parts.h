// What all-reduce needs where models are on GPUs. Builds without CUDA, or
// without NCCL, have these functions too and refuse.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/collective/float_memory.h"
#include "worker/collective/gloo_collective.h"
#include "worker/model/cuda_model.h"

namespace slackline {

// For main(), before it starts a thread: see SetNcclAlgorithm().
void PrepareGpuGroups(config::Collective::Algorithm algorithm);

// The memory of the model's GPU; the model outlives it.
absl::StatusOr<std::unique_ptr<FloatMemory>> CreateGpuMemory(
    CudaModel& model, absl::Duration timeout);

// Connects over NCCL what Gloo's options describe.
absl::StatusOr<std::unique_ptr<Collective>> ConnectGpuGroup(
    CudaModel& model, const GlooCollective::Options& options);

}  // namespace slackline
