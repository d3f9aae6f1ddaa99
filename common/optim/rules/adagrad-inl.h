// adagrad: s += g^2; p -= r g / (sqrt(s) + epsilon). Duchi et al. 2011. No
// include guard, see rules/all-inl.h.
struct Adagrad {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s) {
    s = Add(s, Mul(g, g));
    const Real root = Add(Sqrt(s), Set(c.epsilon));
    p = Sub(p, Div(Mul(Set(c.rate), g), root));
  }
};
