#include "common/cuda/sweep_kernel.cuh"
#include "common/floats/round_body.h"
#include "common/floats/round_cuda.h"

namespace slackline {

cudaError_t RoundAsync(HalfType type, const float* in, uint16_t* out,
                       size_t elements, cudaStream_t stream) {
  Alignment alignment;
  alignment.Add(in, sizeof(*in));
  alignment.Add(out, sizeof(*out));
  const Sweep sweep = alignment.Over(elements);
  if (type == HalfType::kBfloat16) {
    return SweepAsync(RoundBody<HalfType::kBfloat16>{in, out}, sweep, stream);
  }
  return SweepAsync(RoundBody<HalfType::kFloat16>{in, out}, sweep, stream);
}

}  // namespace slackline
