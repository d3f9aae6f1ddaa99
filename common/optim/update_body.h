// What a thread of the update's kernel does: a body for Sweep. Runs on a CPU,
// too. Internal to common/optim.
#pragma once

#include <vector_types.h>

#include "common/cuda/sweep.h"
#include "common/optim/cuda_operands.h"
#include "common/optim/formulas.h"

namespace slackline::optim {

SL_HOST_DEVICE inline float4 LoadFour(const float* from) {
  return *reinterpret_cast<const float4*>(from);
}

SL_HOST_DEVICE inline void StoreFour(float4 four, float* to) {
  *reinterpret_cast<float4*>(to) = four;
}

// Which elements a thread takes.
inline Sweep SweepOf(Rule rule, const CudaOperands& operands, size_t elements) {
  Alignment alignment;
  alignment.Add(operands.in, sizeof(float));
  alignment.Add(operands.out, sizeof(float));
  for (int slot = 0; slot < SlotCount(rule); ++slot) {
    alignment.Add(operands.slots[slot], sizeof(float));
  }
  for (int k = 0; k < operands.gradient_count; ++k) {
    alignment.Add(operands.gradients[k], sizeof(float));
  }
  return alignment.Over(elements);
}

// `Formula` is one of optim::scalar.
template <typename Formula>
struct UpdateBody {
  static constexpr int kSlots = Formula::kSlots;
  Coefficients c;
  CudaOperands o;

  SL_HOST_DEVICE void One(size_t i) const {
    float sum = o.gradients[0][i];
    for (int k = 1; k < o.gradient_count; ++k) sum += o.gradients[k][i];
    float parameter = o.in[i];
    float slots[kSlotsMax] = {};
    for (int slot = 0; slot < kSlots; ++slot) slots[slot] = o.slots[slot][i];
    scalar::Update<Formula>(c, sum, parameter, slots[0], slots[1], slots[2]);
    for (int slot = 0; slot < kSlots; ++slot) o.slots[slot][i] = slots[slot];
    o.out[i] = parameter;
  }

  SL_HOST_DEVICE void Four(size_t i) const {
    float4 sum = LoadFour(o.gradients[0] + i);
    for (int k = 1; k < o.gradient_count; ++k) {
      const float4 next = LoadFour(o.gradients[k] + i);
      sum.x += next.x;
      sum.y += next.y;
      sum.z += next.z;
      sum.w += next.w;
    }
    float4 parameter = LoadFour(o.in + i);
    float4 slots[kSlotsMax] = {};
    for (int slot = 0; slot < kSlots; ++slot) {
      slots[slot] = LoadFour(o.slots[slot] + i);
    }
    const auto lane = [&](float float4::*at) {
      scalar::Update<Formula>(c, sum.*at, parameter.*at, slots[0].*at,
                              slots[1].*at, slots[2].*at);
    };
    lane(&float4::x);
    lane(&float4::y);
    lane(&float4::z);
    lane(&float4::w);
    for (int slot = 0; slot < kSlots; ++slot) {
      StoreFour(slots[slot], o.slots[slot] + i);
    }
    StoreFour(parameter, o.out + i);
  }
};

}  // namespace slackline::optim
