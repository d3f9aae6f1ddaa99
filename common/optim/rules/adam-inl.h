// adam: m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
//       p -= r (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
// Kingma and Ba 2015. Coefficients::rate and root_scale have the divisions by
// 1 - beta^t in them.
// adamw: p *= 1 - r d, then adam. Loshchilov and Hutter 2019. That factor is
// Coefficients::keep; it is 1 for adam.
// amsgrad: the root is of the largest v so far, w. Reddi et al. 2018, with the
// division by 1 - beta2^t as in PyTorch.
// radam: see radam.cc.
// No include guard, see rules/all-inl.h.
struct Adam {
  static constexpr int kSlots = 2;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& m,
                       Real& v) {
    m = Add(Mul(Set(c.beta1), m), Mul(Set(c.one_minus_beta1), g));
    v = Add(Mul(Set(c.beta2), v), Mul(Mul(Set(c.one_minus_beta2), g), g));
    const Real root = Add(Mul(Sqrt(v), Set(c.root_scale)), Set(c.epsilon));
    p = Sub(Mul(p, Set(c.keep)), Div(Mul(Set(c.rate), m), root));
  }
};

struct Amsgrad {
  static constexpr int kSlots = 3;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& m, Real& v,
                       Real& w) {
    m = Add(Mul(Set(c.beta1), m), Mul(Set(c.one_minus_beta1), g));
    v = Add(Mul(Set(c.beta2), v), Mul(Mul(Set(c.one_minus_beta2), g), g));
    w = Larger(w, v);
    const Real root = Add(Mul(Sqrt(w), Set(c.root_scale)), Set(c.epsilon));
    p = Sub(Mul(p, Set(c.keep)), Div(Mul(Set(c.rate), m), root));
  }
};
