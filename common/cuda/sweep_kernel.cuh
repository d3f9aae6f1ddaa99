// The kernel that runs a Sweep on a GPU.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda/sweep.h"

namespace slackline {

template <typename Body>
__global__ void SweepKernel(const Body body, const Sweep sweep) {
  sweep.Run(body, size_t{blockIdx.x} * blockDim.x + threadIdx.x,
            size_t{gridDim.x} * blockDim.x);
}

// Returns before the device is done. No elements: does nothing.
template <typename Body>
cudaError_t SweepAsync(Body body, Sweep sweep, cudaStream_t stream) {
  constexpr size_t kThreads = 256;
  // Beyond this many blocks, which fill any GPU several times over, each thread
  // takes several elements.
  constexpr size_t kBlocksMax = 1 << 15;
  if (sweep.elements == 0) return cudaSuccess;
  const size_t blocks =
      std::min((sweep.Threads() + kThreads - 1) / kThreads, kBlocksMax);
  void* arguments[] = {&body, &sweep};
  // Its result is this launch's own; cudaGetLastError() may have an older one.
  return cudaLaunchKernel(
      SweepKernel<Body>, dim3(static_cast<unsigned int>(blocks)),
      dim3(static_cast<unsigned int>(kThreads)), arguments, 0, stream);
}

}  // namespace slackline
