// All formulas, written once for floats (formulas.h: GPUs and tests) and for
// vectors of them (kernels.cc: CPUs).
//
// Highway compiles vector code once for each instruction set, each time in a
// namespace of its own, so this file and those that it includes have no include
// guard. Whoever includes it does so inside such a namespace and has there: the
// type Real; Add, Sub, Mul, Div, Sqrt and Abs of Reals; Larger, which is the
// first Real if it is larger than the second, else the second; SignOf, which is
// 1, -1 or the Real itself if that is neither above nor below 0; Set, which
// makes a Real of a float; and SL_FORMULA, what is written before a static
// function.
//
// A formula is given the parameter p, the gradient g with the weight decay
// added, and as many slots as kSlots says. It changes p and the slots. Slots
// start as zeros. Every operation is rounded to float by itself: whoever
// compiles this must keep products and sums apart (-ffp-contract=off for g++,
// --fmad=false for nvcc).
#include "common/optim/rules/adadelta-inl.h"
#include "common/optim/rules/adagrad-inl.h"
#include "common/optim/rules/adam-inl.h"
#include "common/optim/rules/adamax-inl.h"
#include "common/optim/rules/lion-inl.h"
#include "common/optim/rules/momentum-inl.h"
#include "common/optim/rules/nadam-inl.h"
#include "common/optim/rules/nesterov-inl.h"
#include "common/optim/rules/rmsprop-inl.h"
#include "common/optim/rules/sgd-inl.h"

// Calls `f` with the formula of the rule.
template <typename F>
constexpr auto WithFormula(Rule rule, const F& f) {
  switch (rule) {
    case Rule::kSgd:
      return f(Sgd());
    case Rule::kMomentum:
      return f(Momentum());
    case Rule::kDampenedMomentum:
      return f(DampenedMomentum());
    case Rule::kNesterov:
      return f(Nesterov());
    case Rule::kAdagrad:
      return f(Adagrad());
    case Rule::kAmsgrad:
      return f(Amsgrad());
    case Rule::kNadam:
      return f(Nadam());
    case Rule::kAdamax:
      return f(Adamax());
    case Rule::kAdadelta:
      return f(Adadelta());
    case Rule::kRmsprop:
      return f(Rmsprop());
    case Rule::kRmspropMomentum:
      return f(RmspropMomentum());
    case Rule::kCenteredRmsprop:
      return f(CenteredRmsprop());
    case Rule::kCenteredRmspropMomentum:
      return f(CenteredRmspropMomentum());
    case Rule::kLion:
      return f(Lion());
    case Rule::kAdam:
      break;
  }
  return f(Adam());
}

// One update of an element (or a vector of them). `sum` is that of the
// gradients, not yet scaled. Slots that the formula does not have are left
// alone.
template <typename Formula>
SL_FORMULA void Update(const Coefficients& c, Real sum, Real& p, Real& slot0,
                       Real& slot1, Real& slot2) {
  Real g = Mul(sum, Set(c.gradient_scale));
  g = Add(g, Mul(Set(c.weight_decay), p));
  if constexpr (Formula::kSlots == 0) {
    Formula::Step(c, p, g);
  } else if constexpr (Formula::kSlots == 1) {
    Formula::Step(c, p, g, slot0);
  } else if constexpr (Formula::kSlots == 2) {
    Formula::Step(c, p, g, slot0, slot1);
  } else {
    Formula::Step(c, p, g, slot0, slot1, slot2);
  }
}
