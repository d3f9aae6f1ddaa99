#include "common/optim/kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

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

// What a kernel reads and writes; gradients behind the first `fan_in` are null.
struct Streams {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::byte* slots[2] = {};
  const std::byte* gradients[kFanIn] = {};
};

// The formulas. Each updates the slots at element i and returns the parameter.
// Mul and Add stay apart (also -ffp-contract=off): see optimizer.h.

struct Sgd {
  static HWY_INLINE V Step(const Coefficients& c, const Streams&, size_t, V p,
                           V g) {
    const Floats d;
    g = hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
    return hn::Sub(p, hn::Mul(hn::Set(d, c.rate), g));
  }
};

struct Momentum {
  static HWY_INLINE V Step(const Coefficients& c, const Streams& s, size_t i,
                           V p, V g) {
    const Floats d;
    g = hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
    const V v =
        hn::Add(hn::Mul(hn::Set(d, c.momentum), LoadAt(s.slots[0], i)), g);
    StoreAt(v, s.slots[0], i);
    return hn::Sub(p, hn::Mul(hn::Set(d, c.rate), v));
  }
};

struct Nesterov {
  static HWY_INLINE V Step(const Coefficients& c, const Streams& s, size_t i,
                           V p, V g) {
    const Floats d;
    const V momentum = hn::Set(d, c.momentum);
    g = hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
    const V v = hn::Add(hn::Mul(momentum, LoadAt(s.slots[0], i)), g);
    StoreAt(v, s.slots[0], i);
    g = hn::Add(g, hn::Mul(momentum, v));
    return hn::Sub(p, hn::Mul(hn::Set(d, c.rate), g));
  }
};

struct Adagrad {
  static HWY_INLINE V Step(const Coefficients& c, const Streams& s, size_t i,
                           V p, V g) {
    const Floats d;
    g = hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
    const V sum = hn::Add(LoadAt(s.slots[0], i), hn::Mul(g, g));
    StoreAt(sum, s.slots[0], i);
    const V root = hn::Add(hn::Sqrt(sum), hn::Set(d, c.epsilon));
    return hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, c.rate), g), root));
  }
};

struct Adam {
  static HWY_INLINE V Step(const Coefficients& c, const Streams& s, size_t i,
                           V p, V g) {
    const Floats d;
    g = hn::Add(g, hn::Mul(hn::Set(d, c.weight_decay), p));
    const V m = hn::Add(hn::Mul(hn::Set(d, c.beta1), LoadAt(s.slots[0], i)),
                        hn::Mul(hn::Set(d, c.one_minus_beta1), g));
    StoreAt(m, s.slots[0], i);
    const V v = hn::Add(hn::Mul(hn::Set(d, c.beta2), LoadAt(s.slots[1], i)),
                        hn::Mul(hn::Mul(hn::Set(d, c.one_minus_beta2), g), g));
    StoreAt(v, s.slots[1], i);
    const V root = hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, c.root_scale)),
                           hn::Set(d, c.epsilon));
    p = hn::Mul(p, hn::Set(d, c.keep));
    return hn::Sub(p, hn::Div(hn::Mul(hn::Set(d, c.rate), m), root));
  }
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
  const V scale = hn::Set(d, c.gradient_scale);
  for (size_t i = 0; i < elements; i += hn::Lanes(d)) {
    V g = LoadAt(s.gradients[0], i);
    for (size_t k = 1; k < kGradients; ++k) {
      g = hn::Add(g, LoadAt(s.gradients[k], i));
    }
    g = hn::Mul(g, scale);
    StoreAt(Formula::Step(c, s, i, LoadAt(s.in, i), g), s.out, i);
  }
}

// Adds kFanIn gradients into `out`, which may be the first of them.
void Sum(const Coefficients&, const Streams& streams, size_t elements) {
  const Streams s = streams;
  for (size_t i = 0; i < elements; i += hn::Lanes(Floats())) {
    V g = LoadAt(s.gradients[0], i);
    for (size_t k = 1; k < kFanIn; ++k) {
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
  switch (rule) {
    case Rule::kSgd:
      return KernelOf<Sgd>(gradients);
    case Rule::kMomentum:
      return KernelOf<Momentum>(gradients);
    case Rule::kNesterov:
      return KernelOf<Nesterov>(gradients);
    case Rule::kAdagrad:
      return KernelOf<Adagrad>(gradients);
    case Rule::kAdam:
      return KernelOf<Adam>(gradients);
  }
  return nullptr;
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
  alignas(64) Padded in = {}, out = {}, slots[2] = {}, gradients[kFanIn] = {};
  Streams padded;
  padded.in = in;
  padded.out = out;
  if (s.in != nullptr) std::memcpy(in, s.in + offset, bytes);
  for (size_t k = 0; k < 2; ++k) {
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
  for (size_t k = 0; k < 2; ++k) {
    if (s.slots[k] != nullptr) {
      std::memcpy(s.slots[k] + offset, slots[k], bytes);
    }
  }
}

void UpdateAll(Rule rule, const Coefficients& c, const Operands& operands,
               size_t elements) {
  const size_t gradients = operands.gradients.size();
  const size_t block =
      gradients <= kFanIn ? elements : std::min(elements, kBlockElements);
  alignas(64) std::byte sums[kBlockElements * sizeof(float)];

  for (size_t begin = 0; begin < elements; begin += block) {
    const size_t count = std::min(block, elements - begin);
    const size_t offset = begin * sizeof(float);
    size_t used = 0;    // Gradients that `s` or `sums` has.
    size_t fan_in = 0;  // Gradients and partial sums that `s` has.
    Streams s;
    const auto fill = [&] {
      while (fan_in < kFanIn && used < gradients) {
        s.gradients[fan_in++] = operands.gradients[used++] + offset;
      }
    };
    fill();
    while (used < gradients) {
      // Adding to the sum so far keeps the order: it is the first operand.
      s.out = sums;
      Run(&Sum, c, s, count);
      s = Streams();
      s.gradients[0] = sums;
      fan_in = 1;
      fill();
    }
    s.in = operands.in + offset;
    s.out = operands.out + offset;
    for (size_t k = 0; k < 2; ++k) {
      if (operands.slots[k] != nullptr) s.slots[k] = operands.slots[k] + offset;
    }
    Run(KernelOf(rule, fan_in), c, s, count);
  }
}

}  // namespace slackline::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace slackline::optim {

HWY_EXPORT(UpdateAll);

void Update(Rule rule, const Coefficients& coefficients,
            const Operands& operands, size_t elements) {
  HWY_DYNAMIC_DISPATCH(UpdateAll)(rule, coefficients, operands, elements);
}

}  // namespace slackline::optim
#endif  // HWY_ONCE
