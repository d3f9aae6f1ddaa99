// RoundToHalf on a GPU.
#pragma once

#include "absl/status/status.h"
#include "common/floats/half.h"

struct CUstream_st;  // What cudaStream_t points to.

namespace slackline {

// out[i] becomes RoundToHalf(type, in[i]), to the same bits. `in` and `out` are
// disjoint, aligned to their elements, and in memory that the calling thread's
// GPU can access. Fastest where `in` is as many elements from a multiple of 16
// bytes as `out` is from one of 8.
//
// Returns before the GPU is done: both are left to the work before on `stream`
// until that has passed. No elements: does nothing. Errors are those of the
// launch.
absl::Status RoundToHalfAsync(HalfType type, const float* in, uint16_t* out,
                              size_t elements, CUstream_st* stream);

}  // namespace slackline
