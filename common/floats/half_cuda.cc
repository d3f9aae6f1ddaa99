#include "common/floats/half_cuda.h"

#include "common/cuda/cuda_status.h"
#include "common/floats/round_cuda.h"

namespace slackline {

absl::Status RoundToHalfAsync(HalfType type, const float* in, uint16_t* out,
                              size_t elements, CUstream_st* stream) {
  return CudaStatus(RoundAsync(type, in, out, elements, stream),
                    "launch of the rounding to 16 bits");
}

}  // namespace slackline
