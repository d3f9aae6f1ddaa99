// Optimizer::Apply on a GPU.
#pragma once

#include "absl/status/status.h"
#include "common/optim/optimizer.h"

struct CUstream_st;  // What cudaStream_t points to.

namespace slackline {

// Computes what optimizer.Apply(args) computes, to the same bits (but for those
// inside a NaN). All pointers of `args` are in memory that the calling thread's
// GPU can access, and gradients are aligned to floats. Fastest where all arrays
// are equally far from a multiple of 16 bytes.
//
// Returns before the GPU is done: what `args` points to stays, and is left to
// the work before on `stream`, until that has passed; `args` itself may go.
// No elements: does nothing.
//
// InvalidArgument, and nothing was started: more than 64 gradients, or one that
// is not aligned. Other errors are those of the launch. A missing slot or
// gradient, or an update_count below 1, is fatal, as on the CPU.
absl::Status ApplyAsync(const Optimizer& optimizer,
                        const Optimizer::ApplyArgs& args, CUstream_st* stream);

}  // namespace slackline
