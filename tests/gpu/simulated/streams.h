// A GPU in the memory of the host, for tests where there is none: what is put
// on a stream runs when somebody looks at an event or waits, a few operations
// of random streams at a time. What relies on an order that no event makes sees
// wrong numbers sooner or later, and memory begins as NaN.
//
// With simulated_cuda.cc and simulated_nccl.cc it takes the place of the CUDA
// runtime and of NCCL in a process that is started with LD_PRELOAD. Kernels are
// ours only, by the code of their threads, one thread after the other. Speeds
// and what the hardware does are not simulated, but for how long copies to the
// host take, if a test says so. With SIMULATED_CUDA_FAILS_AT=N
// the Nth copy and all later ones fail.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

namespace slackline::simulated {

constexpr int kGpus = 8;

// Puts an operation on the stream. It is called until it returns true.
void Put(cudaStream_t stream, std::function<bool()> operation);

// Ends the process unless these bytes are a GPU's.
void CheckOnGpu(const void* begin, size_t bytes);

}  // namespace slackline::simulated

extern "C" {
// For tests: memory of the host that counts as a GPU's from now on.
void slackline_simulated_take(const void* begin, size_t bytes, int gpu);
// Runs all that is on the stream, and what that waits for, but nothing else.
void slackline_simulated_run(cudaStream_t stream);
// Each copy to the host takes so long from now on.
void slackline_simulated_copy_to_host_takes(int ms);
// Operations of all streams so far.
long slackline_simulated_operations();
}
