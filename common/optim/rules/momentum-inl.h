// momentum: v = momentum v + g; p -= r v. No include guard, see
// rules/all-inl.h.
struct Momentum {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& v) {
    v = Add(Mul(Set(c.momentum), v), g);
    p = Sub(p, Mul(Set(c.rate), v));
  }
};
