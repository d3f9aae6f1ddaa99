#include "common/cuda/sweep_kernel.cuh"
#include "common/optim/update_body.h"
#include "common/optim/update_cuda.h"

namespace slackline::optim {

cudaError_t UpdateAsync(Rule rule, const Coefficients& coefficients,
                        const CudaOperands& operands, size_t elements,
                        cudaStream_t stream) {
  const Sweep sweep = SweepOf(rule, operands, elements);
  return scalar::WithFormula(rule, [&](auto formula) {
    return SweepAsync(UpdateBody<decltype(formula)>{coefficients, operands},
                      sweep, stream);
  });
}

}  // namespace slackline::optim
