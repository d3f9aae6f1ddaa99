// What a thread of the rounding's kernel does: a body for Sweep. Runs on a CPU,
// too. Internal to common/floats.
#pragma once

#include <vector_types.h>

#include "common/floats/half.h"

namespace slackline {

template <HalfType kType>
struct RoundBody {
  const float* in;
  uint16_t* out;

  SL_HOST_DEVICE void One(size_t i) const {
    out[i] = RoundToHalf(kType, in[i]);
  }

  SL_HOST_DEVICE void Four(size_t i) const {
    const float4 four = *reinterpret_cast<const float4*>(in + i);
    *reinterpret_cast<ushort4*>(out + i) =
        ushort4{RoundToHalf(kType, four.x), RoundToHalf(kType, four.y),
                RoundToHalf(kType, four.z), RoundToHalf(kType, four.w)};
  }
};

}  // namespace slackline
