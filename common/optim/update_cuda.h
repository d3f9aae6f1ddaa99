// The kernels behind ApplyAsync. Internal to common/optim, and free of Abseil,
// which not every nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/optim/cuda_operands.h"
#include "common/optim/formulas.h"

namespace slackline::optim {

cudaError_t UpdateAsync(Rule rule, const Coefficients& coefficients,
                        const CudaOperands& operands, size_t elements,
                        cudaStream_t stream);

}  // namespace slackline::optim
