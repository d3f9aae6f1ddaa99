// AllFinite() on a GPU. Free of Abseil, which not every nvcc compiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace slackline::optim {

// Sets `*found` to 1 if one of the floats is a NaN or an infinity, else leaves
// it alone. All of it is in memory of the device, `floats` aligned to them.
// Returns before the device is done.
cudaError_t FindNonfiniteAsync(const float* floats, size_t elements, int* found,
                               cudaStream_t stream);

}  // namespace slackline::optim
