// What a thread of the search for NaNs does: a body for Sweep. Runs on a CPU,
// too. Internal to common/optim.
#pragma once

#include <vector_types.h>

#include <cstddef>

#include "common/host_device.h"

namespace slackline::optim {

struct FiniteBody {
  const float* floats;
  int* found;  // Whoever finds something writes the same.

  // The difference of a NaN or an infinity with itself is a NaN, which equals
  // nothing.
  SL_HOST_DEVICE static bool IsFinite(float value) {
    return value - value == 0;
  }

  SL_HOST_DEVICE void One(size_t i) const {
    if (!IsFinite(floats[i])) *found = 1;
  }

  SL_HOST_DEVICE void Four(size_t i) const {
    const float4 four = *reinterpret_cast<const float4*>(floats + i);
    if (!IsFinite(four.x) || !IsFinite(four.y) || !IsFinite(four.z) ||
        !IsFinite(four.w)) {
      *found = 1;
    }
  }
};

}  // namespace slackline::optim
