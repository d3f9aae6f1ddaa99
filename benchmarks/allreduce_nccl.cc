#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdlib.h>

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "benchmarks/allreduce.h"
#include "common/cuda/cuda_status.h"
#include "common/status.h"
#include "worker/collective/nccl_collective.h"
#include "worker/gpu/cuda_handles.h"

namespace slackline::bench {
namespace {

constexpr absl::Duration kTimeout = absl::Minutes(5);

absl::Status NcclStatus(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(call, ": ", ncclGetErrorString(result)));
}

class NcclRank final : public AllReduceRank {
 public:
  absl::Status Init(const AllReduceWorld& world, int gpu) {
    SL_RETURN_IF_ERROR(UseGpu(gpu));
    SL_ASSIGN_OR_RETURN(stream_, CreateCudaStream());
    SL_ASSIGN_OR_RETURN(collective_,
                        NcclCollective::Create({.rank = Rank{world.rank},
                                                .world_size = world.world_size,
                                                .gpu = gpu,
                                                .stream = stream_.get(),
                                                .group = "nccl",
                                                .connect_timeout = kTimeout,
                                                .timeout = kTimeout,
                                                .store = world.store}));
    ncclUniqueId id = {};
    if (world.rank == 0) {
      SL_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId"));
      SL_RETURN_IF_ERROR(
          world.store->Put("raw-nccl", std::string(id.internal, sizeof(id))));
    }
    SL_ASSIGN_OR_RETURN(const std::string found,
                        world.store->Get("raw-nccl", kTimeout));
    std::memcpy(&id, found.data(), sizeof(id));
    return NcclStatus(ncclCommInitRank(&raw_, world.world_size, id, world.rank),
                      "ncclCommInitRank");
  }

  ~NcclRank() override {
    if (raw_ != nullptr) (void)ncclCommDestroy(raw_);
  }

  absl::Status Fill(const std::vector<float>& values) override {
    if (values.size() != size_) {
      size_ = values.size();
      SL_ASSIGN_OR_RETURN(buffer_, AllocateOnDevice(size_ * sizeof(float)));
    }
    return CudaStatus(cudaMemcpy(data(), values.data(), size_ * sizeof(float),
                                 cudaMemcpyHostToDevice),
                      "copy to the GPU");
  }
  absl::StatusOr<std::vector<float>> Read() override {
    std::vector<float> values(size_);
    SL_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpy(values.data(), data(), size_ * sizeof(float),
                              cudaMemcpyDeviceToHost),
                   "copy from the GPU"));
    return values;
  }

  absl::Status Slackline(size_t size) override {
    return collective_->Wait(
        collective_->AllReduceAsync(absl::MakeSpan(data(), size)));
  }
  absl::Status Raw(size_t size) override {
    SL_RETURN_IF_ERROR(
        NcclStatus(ncclAllReduce(data(), data(), size, ncclFloat32, ncclSum,
                                 raw_, stream_.get()),
                   "ncclAllReduce"));
    return CudaStatus(cudaStreamSynchronize(stream_.get()),
                      "cudaStreamSynchronize");
  }

 private:
  float* data() const { return static_cast<float*>(buffer_.get()); }

  CudaStream stream_;
  DeviceMemory buffer_;
  size_t size_ = 0;
  std::unique_ptr<NcclCollective> collective_;
  ncclComm_t raw_ = nullptr;
};

}  // namespace

int CountGpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateNcclRank(
    const AllReduceWorld& world) {
  SetNcclAlgorithm(config::Collective::RING);
  const int gpus = CountGpus();
  if (gpus == 0) return absl::FailedPreconditionError("CUDA finds no GPU");
  // Ranks on one GPU: NCCL has to take them for different machines.
  if (gpus < world.world_size) {
    setenv("NCCL_HOSTID", absl::StrCat("host", world.rank).c_str(), 1);
  }
  auto rank = std::make_unique<NcclRank>();
  SL_RETURN_IF_ERROR(rank->Init(world, world.rank % gpus));
  return rank;
}

}  // namespace slackline::bench
