// The kernels behind RoundToHalfAsync. Internal to common/floats, and free of
// Abseil, which not every nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

#include "common/floats/half.h"

namespace slackline {

cudaError_t RoundAsync(HalfType type, const float* in, uint16_t* out,
                       size_t elements, cudaStream_t stream);

}  // namespace slackline
