#include "common/cuda/sweep.cuh"
#include "common/floats/round_cuda.h"

namespace slackline {
namespace {

template <HalfType kType>
struct Round {
  const float* in;
  uint16_t* out;

  __device__ void One(size_t i) const { out[i] = RoundToHalf(kType, in[i]); }

  __device__ void Four(size_t i) const {
    const float4 four = *reinterpret_cast<const float4*>(in + i);
    *reinterpret_cast<ushort4*>(out + i) =
        make_ushort4(RoundToHalf(kType, four.x), RoundToHalf(kType, four.y),
                     RoundToHalf(kType, four.z), RoundToHalf(kType, four.w));
  }
};

}  // namespace

cudaError_t RoundAsync(HalfType type, const float* in, uint16_t* out,
                       size_t elements, cudaStream_t stream) {
  Alignment alignment;
  alignment.Add(in, sizeof(*in));
  alignment.Add(out, sizeof(*out));
  if (type == HalfType::kBfloat16) {
    return SweepAsync(Round<HalfType::kBfloat16>{in, out}, alignment, elements,
                      stream);
  }
  return SweepAsync(Round<HalfType::kFloat16>{in, out}, alignment, elements,
                    stream);
}

}  // namespace slackline
