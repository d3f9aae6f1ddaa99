// lion: p = (1 - r d) p - r sign(beta1 m + (1 - beta1) g);
//       m = beta2 m + (1 - beta2) g.
// Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms". The sign
// of 0 is 0. The factor of p is Coefficients::keep. No include guard, see
// rules/all-inl.h.
struct Lion {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& m) {
    const Real mixed =
        Add(Mul(Set(c.beta1), m), Mul(Set(c.one_minus_beta1), g));
    p = Sub(Mul(p, Set(c.keep)), Mul(Set(c.rate), SignOf(mixed)));
    m = Add(Mul(Set(c.beta2), m), Mul(Set(c.one_minus_beta2), g));
  }
};
