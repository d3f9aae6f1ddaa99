// What the kernels behind ApplyAsync work on. Internal to common/optim.
#pragma once

#include "common/optim/formulas.h"

namespace slackline::optim {

// Kernel parameters have room for a few kilobytes.
constexpr size_t kCudaGradientsMax = 64;

// Operands (kernels.h) in memory of the device, aligned to floats.
struct CudaOperands {
  const float* in = nullptr;
  float* out = nullptr;
  float* slots[kSlotsMax] = {};
  const float* gradients[kCudaGradientsMax] = {};
  int gradient_count = 0;  // In [1, kCudaGradientsMax].
};

}  // namespace slackline::optim
