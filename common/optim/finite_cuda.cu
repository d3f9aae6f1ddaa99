#include "common/cuda/sweep_kernel.cuh"
#include "common/optim/finite_body.h"
#include "common/optim/finite_cuda.h"

namespace slackline::optim {

cudaError_t FindNonfiniteAsync(const float* floats, size_t elements, int* found,
                               cudaStream_t stream) {
  Alignment alignment;
  alignment.Add(floats, sizeof(float));
  return SweepAsync(FiniteBody{floats, found}, alignment.Over(elements),
                    stream);
}

}  // namespace slackline::optim
