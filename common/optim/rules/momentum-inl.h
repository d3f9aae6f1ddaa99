// momentum: v = momentum v + g; p -= r v. With a dampening the gradient counts
// 1 - dampening in v, but for the first one, which counts as a whole; that
// factor is Coefficients::one_minus_dampening. No include guard, see
// rules/all-inl.h.
struct Momentum {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& v) {
    v = Add(Mul(Set(c.momentum), v), g);
    p = Sub(p, Mul(Set(c.rate), v));
  }
};

struct DampenedMomentum {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& v) {
    v = Add(Mul(Set(c.momentum), v), Mul(Set(c.one_minus_dampening), g));
    p = Sub(p, Mul(Set(c.rate), v));
  }
};
