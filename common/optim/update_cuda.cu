#include "common/cuda/sweep_kernel.cuh"
#include "common/optim/update_body.h"
#include "common/optim/update_cuda.h"

namespace slackline::optim {

cudaError_t UpdateAsync(Rule rule, const Coefficients& coefficients,
                        const CudaOperands& operands, size_t elements,
                        cudaStream_t stream) {
  const Sweep sweep = SweepOf(rule, operands, elements);
  const auto run = [&](const auto& body) {
    return SweepAsync(body, sweep, stream);
  };
  switch (rule) {
    case Rule::kSgd:
      return run(UpdateBody<Rule::kSgd>{coefficients, operands});
    case Rule::kMomentum:
      return run(UpdateBody<Rule::kMomentum>{coefficients, operands});
    case Rule::kNesterov:
      return run(UpdateBody<Rule::kNesterov>{coefficients, operands});
    case Rule::kAdagrad:
      return run(UpdateBody<Rule::kAdagrad>{coefficients, operands});
    case Rule::kAdam:
      return run(UpdateBody<Rule::kAdam>{coefficients, operands});
  }
  return cudaErrorInvalidValue;
}

}  // namespace slackline::optim
