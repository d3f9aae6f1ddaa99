#include "common/optim/kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/optim/finite.h"
#include "common/optim/squares.h"

// This file is compiled once for each vector instruction set; the best one that
// the machine has is taken at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "common/optim/kernels.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace slackline::optim::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes, so that a padded vector has a fixed size on every target.
constexpr size_t kLanesMax = 16;
using Floats = HWY_CAPPED(float, kLanesMax);
#if HWY_TARGET != HWY_SCALAR
using Bytes = hn::Repartition<uint8_t, Floats>;
#endif
using V = hn::Vec<Floats>;

// Kernels add up to this many gradients in registers.
constexpr size_t kFanIn = 8;
// More gradients than that go through a buffer of this many partial sums, which
// stays in the first-level cache.
constexpr size_t kBlockElements = 1024;

// Loads and stores of bytes: typed ones may require alignment, and gradients
// have none. The scalar target has no vectors of bytes.
HWY_INLINE V LoadAt(const std::byte* base, size_t element) {
  const std::byte* from = base + element * sizeof(float);
#if HWY_TARGET == HWY_SCALAR
  float value;
  std::memcpy(&value, from, sizeof(value));
  return hn::Set(Floats(), value);
#else
  return hn::BitCast(
      Floats(), hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(from)));
#endif
}

HWY_INLINE void StoreAt(V vector, std::byte* base, size_t element) {
  std::byte* to = base + element * sizeof(float);
#if HWY_TARGET == HWY_SCALAR
  const float value = hn::GetLane(vector);
  std::memcpy(to, &value, sizeof(value));
#else
  hn::StoreU(hn::BitCast(Bytes(), vector), Bytes(),
             reinterpret_cast<uint8_t*>(to));
#endif
}

// The formulas for vectors. Mul and Add stay apart (also -ffp-contract=off).
using Real = V;
HWY_INLINE V Set(float value) { return hn::Set(Floats(), value); }
using hn::Abs;
using hn::Add;
using hn::Div;
using hn::Mul;
using hn::Sqrt;
using hn::Sub;
// hn::Max of a NaN depends on the machine.
HWY_INLINE V Larger(V a, V b) { return hn::IfThenElse(hn::Gt(a, b), a, b); }
HWY_INLINE V SignOf(V a) {
  const V zero = Set(0);
  return hn::IfThenElse(hn::Gt(a, zero), Set(1),
                        hn::IfThenElse(hn::Lt(a, zero), Set(-1), a));
}
#define SL_FORMULA static HWY_INLINE
#include "common/optim/rules/all-inl.h"
#undef SL_FORMULA

// What a kernel reads and writes; gradients behind the first `fan_in` are null.
struct Streams {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::byte* slots[kSlotsMax] = {};
  const std::byte* gradients[kFanIn] = {};
};

// `elements` is a multiple of the lanes.
template <typename Formula, size_t kGradients>
void Apply(const Coefficients& coefficients, const Streams& streams,
           size_t elements) {
  // Copies that no store of the loop can change, so that they stay in
  // registers.
  const Coefficients c = coefficients;
  const Streams s = streams;
  const Floats d;
  for (size_t i = 0; i < elements; i += hn::Lanes(d)) {
    V sum = LoadAt(s.gradients[0], i);
    for (size_t k = 1; k < kGradients; ++k) {
      sum = hn::Add(sum, LoadAt(s.gradients[k], i));
    }
    V p = LoadAt(s.in, i);
    V slot0 = p, slot1 = p, slot2 = p;  // Without slots: read by nobody.
    if constexpr (Formula::kSlots > 0) slot0 = LoadAt(s.slots[0], i);
    if constexpr (Formula::kSlots > 1) slot1 = LoadAt(s.slots[1], i);
    if constexpr (Formula::kSlots > 2) slot2 = LoadAt(s.slots[2], i);
    Update<Formula>(c, sum, p, slot0, slot1, slot2);
    if constexpr (Formula::kSlots > 0) StoreAt(slot0, s.slots[0], i);
    if constexpr (Formula::kSlots > 1) StoreAt(slot1, s.slots[1], i);
    if constexpr (Formula::kSlots > 2) StoreAt(slot2, s.slots[2], i);
    StoreAt(p, s.out, i);
  }
}

// Adds the gradients into `out`, which may be the first of them.
template <size_t kGradients>
void Sum(const Coefficients&, const Streams& streams, size_t elements) {
  const Streams s = streams;
  for (size_t i = 0; i < elements; i += hn::Lanes(Floats())) {
    V g = LoadAt(s.gradients[0], i);
    for (size_t k = 1; k < kGradients; ++k) {
      g = hn::Add(g, LoadAt(s.gradients[k], i));
    }
    StoreAt(g, s.out, i);
  }
}

using Kernel = void (*)(const Coefficients&, const Streams&, size_t);

template <typename Formula>
Kernel KernelOf(size_t gradients) {
  static constexpr Kernel kKernels[kFanIn] = {
      &Apply<Formula, 1>, &Apply<Formula, 2>, &Apply<Formula, 3>,
      &Apply<Formula, 4>, &Apply<Formula, 5>, &Apply<Formula, 6>,
      &Apply<Formula, 7>, &Apply<Formula, 8>};
  return kKernels[gradients - 1];
}

Kernel KernelOf(Rule rule, size_t gradients) {
  return WithFormula(rule, [gradients](auto formula) {
    return KernelOf<decltype(formula)>(gradients);
  });
}

Kernel SumOf(size_t gradients) {
  static constexpr Kernel kKernels[kFanIn] = {
      &Sum<1>, &Sum<2>, &Sum<3>, &Sum<4>, &Sum<5>, &Sum<6>, &Sum<7>, &Sum<8>};
  return kKernels[gradients - 1];
}

// Runs the kernel on any number of elements. The last ones, where they fill no
// vector, are padded with zeros and go through the same kernel.
void Run(Kernel kernel, const Coefficients& c, const Streams& s,
         size_t elements) {
  const size_t lanes = hn::Lanes(Floats());
  const size_t whole = elements - elements % lanes;
  if (whole > 0) kernel(c, s, whole);
  if (whole == elements) return;

  const size_t offset = whole * sizeof(float);
  const size_t bytes = (elements - whole) * sizeof(float);
  using Padded = std::byte[kLanesMax * sizeof(float)];
  alignas(64) Padded in = {}, out = {}, slots[kSlotsMax] = {},
                     gradients[kFanIn] = {};
  Streams padded;
  padded.in = in;
  padded.out = out;
  if (s.in != nullptr) std::memcpy(in, s.in + offset, bytes);
  for (size_t k = 0; k < kSlotsMax; ++k) {
    if (s.slots[k] == nullptr) continue;
    std::memcpy(slots[k], s.slots[k] + offset, bytes);
    padded.slots[k] = slots[k];
  }
  for (size_t k = 0; k < kFanIn; ++k) {
    if (s.gradients[k] == nullptr) continue;
    std::memcpy(gradients[k], s.gradients[k] + offset, bytes);
    padded.gradients[k] = gradients[k];
  }
  kernel(c, padded, lanes);
  std::memcpy(s.out + offset, out, bytes);
  for (size_t k = 0; k < kSlotsMax; ++k) {
    if (s.slots[k] != nullptr) {
      std::memcpy(s.slots[k] + offset, slots[k], bytes);
    }
  }
}

void UpdateAll(Rule rule, const Coefficients& c, const Operands& operands,
               size_t elements) {
  const size_t gradients = operands.gradients.size();
  const bool in_one = gradients <= kFanIn && operands.sum == nullptr;
  const size_t block = in_one ? elements : std::min(elements, kBlockElements);
  alignas(64) std::byte buffer[kBlockElements * sizeof(float)];

  for (size_t begin = 0; begin < elements; begin += block) {
    const size_t count = std::min(block, elements - begin);
    const size_t offset = begin * sizeof(float);
    std::byte* const sums =
        operands.sum != nullptr ? operands.sum + offset : buffer;
    size_t used = 0;    // Gradients that `s` or `sums` has.
    size_t fan_in = 0;  // Gradients and partial sums that `s` has.
    Streams s;
    const auto fill = [&] {
      while (fan_in < kFanIn && used < gradients) {
        s.gradients[fan_in++] = operands.gradients[used++] + offset;
      }
    };
    fill();
    // All but the last ones, unless the sum of all is wanted.
    const auto summed = [&] { return fan_in == 1 && s.gradients[0] == sums; };
    while (used < gradients || (operands.sum != nullptr && !summed())) {
      // Adding to the sum so far keeps the order: it is the first operand.
      s.out = sums;
      Run(SumOf(fan_in), c, s, count);
      s = Streams();
      s.gradients[0] = sums;
      fan_in = 1;
      fill();
    }
    s.in = operands.in + offset;
    s.out = operands.out + offset;
    for (size_t k = 0; k < kSlotsMax; ++k) {
      if (operands.slots[k] != nullptr) s.slots[k] = operands.slots[k] + offset;
    }
    Run(KernelOf(rule, fan_in), c, s, count);
  }
}

// NaNs and infinities are the floats whose exponent has all bits set: without
// the sign, as integers, they are the largest.
bool AllFiniteIn(const std::byte* data, size_t elements) {
  constexpr int32_t kMagnitude = 0x7fffffff;
  constexpr int32_t kInfinity = 0x7f800000;
  const Floats d;
  const hn::RebindToSigned<Floats> bits;
  const auto magnitude = hn::Set(bits, kMagnitude);
  const auto at = [&](size_t i) {
    return hn::And(hn::BitCast(bits, LoadAt(data, i)), magnitude);
  };
  // Four, so that none waits for the one before.
  auto a = hn::Zero(bits), b = a, c = a, e = a;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + 4 * lanes <= elements; i += 4 * lanes) {
    a = hn::Max(a, at(i));
    b = hn::Max(b, at(i + lanes));
    c = hn::Max(c, at(i + 2 * lanes));
    e = hn::Max(e, at(i + 3 * lanes));
  }
  for (; i + lanes <= elements; i += lanes) a = hn::Max(a, at(i));
  const auto most = hn::Max(hn::Max(a, b), hn::Max(c, e));
  bool finite = hn::AllTrue(bits, hn::Lt(most, hn::Set(bits, kInfinity)));
  for (; i < elements; ++i) {
    int32_t value;
    std::memcpy(&value, data + i * sizeof(float), sizeof(value));
    finite &= (value & kMagnitude) < kInfinity;
  }
  return finite;
}

// Sixteen sums, element i in that of i % 16, whatever vectors the instruction
// set has. Squares of floats are exact in double, so it makes no difference
// whether the addition is fused with the multiplication.
double SumOfSquaresIn(const std::byte* data, size_t elements) {
  constexpr size_t kSums = 16;
  double sums[kSums] = {};
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR && !HWY_HAVE_SCALABLE
  const hn::Repartition<double, Floats> doubles;
  const hn::Half<Floats> half;
  constexpr size_t kLanes = hn::MaxLanes(hn::Repartition<double, Floats>());
  constexpr size_t kVectors = kSums / kLanes;
  hn::Vec<hn::Repartition<double, Floats>> parts[kVectors];
  for (auto& part : parts) part = hn::Zero(doubles);
  for (; i + kSums <= elements; i += kSums) {
    for (size_t v = 0; v < kVectors; v += 2) {
      const V floats = LoadAt(data, i + v * kLanes);
      const auto lower = hn::PromoteTo(doubles, hn::LowerHalf(half, floats));
      const auto upper = hn::PromoteTo(doubles, hn::UpperHalf(half, floats));
      parts[v] = hn::MulAdd(lower, lower, parts[v]);
      parts[v + 1] = hn::MulAdd(upper, upper, parts[v + 1]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v)
    hn::StoreU(parts[v], doubles, sums + v * kLanes);
#endif
  for (; i < elements; ++i) {
    float value;
    std::memcpy(&value, data + i * sizeof(float), sizeof(value));
    sums[i % kSums] += static_cast<double>(value) * value;
  }
  for (size_t k = 1; k < kSums; ++k) sums[0] += sums[k];
  return sums[0];
}

}  // namespace slackline::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline::optim {

HWY_EXPORT(UpdateAll);
HWY_EXPORT(AllFiniteIn);
HWY_EXPORT(SumOfSquaresIn);

void Update(Rule rule, const Coefficients& coefficients,
            const Operands& operands, size_t elements) {
  HWY_DYNAMIC_DISPATCH(UpdateAll)(rule, coefficients, operands, elements);
}

bool AllFinite(const std::byte* data, size_t elements) {
  return HWY_DYNAMIC_DISPATCH(AllFiniteIn)(data, elements);
}

double SumOfSquares(const std::byte* data, size_t elements) {
  return HWY_DYNAMIC_DISPATCH(SumOfSquaresIn)(data, elements);
}

}  // namespace slackline::optim
#endif  // HWY_ONCE
