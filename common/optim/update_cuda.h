// The kernels behind ApplyAsync. Internal to common/optim, and free of Abseil,
// which not every nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/optim/formulas.h"

namespace slackline::optim {

// Kernel parameters have room for a few kilobytes.
constexpr size_t kCudaGradientsMax = 64;

// As Operands (kernels.h), in memory of the device, aligned to floats.
struct CudaOperands {
  const float* in = nullptr;
  float* out = nullptr;
  float* slots[kSlotsMax] = {};
  const float* gradients[kCudaGradientsMax] = {};
  int gradient_count = 0;  // In [1, kCudaGradientsMax].
};

cudaError_t UpdateAsync(Rule rule, const Coefficients& coefficients,
                        const CudaOperands& operands, size_t elements,
                        cudaStream_t stream);

}  // namespace slackline::optim
