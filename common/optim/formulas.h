// What an update computes for one element, in floats: the form that GPUs and
// tests use. kernels.cc compiles the same formulas for vectors; optimizer_test
// holds the two together, bit for bit.
//
// Free of everything but the language, so that nvcc compiles it, too.
#pragma once

#include <cmath>

#include "common/host_device.h"
#include "common/optim/rules/rule.h"

namespace slackline::optim::scalar {

using Real = float;
SL_HOST_DEVICE inline float Set(float value) { return value; }
SL_HOST_DEVICE inline float Add(float a, float b) { return a + b; }
SL_HOST_DEVICE inline float Sub(float a, float b) { return a - b; }
SL_HOST_DEVICE inline float Mul(float a, float b) { return a * b; }
SL_HOST_DEVICE inline float Div(float a, float b) { return a / b; }
SL_HOST_DEVICE inline float Sqrt(float a) { return ::sqrtf(a); }
SL_HOST_DEVICE inline float Abs(float a) { return ::fabsf(a); }
SL_HOST_DEVICE inline float Larger(float a, float b) { return a > b ? a : b; }
SL_HOST_DEVICE inline float SignOf(float a) {
  return a > 0 ? 1.0F : a < 0 ? -1.0F : a;
}

#define SL_FORMULA SL_HOST_DEVICE static inline
#include "common/optim/rules/all-inl.h"
#undef SL_FORMULA

}  // namespace slackline::optim::scalar

namespace slackline::optim {

// Floats of state per parameter: at most kSlotsMax.
constexpr int SlotCount(Rule rule) {
  return scalar::WithFormula(rule, [](auto formula) { return formula.kSlots; });
}

}  // namespace slackline::optim
