// nesterov: v = momentum v + g; p -= r (g + momentum v). Sutskever et al. 2013,
// in the form that PyTorch uses. No include guard, see rules/all-inl.h.
struct Nesterov {
  static constexpr int kSlots = 1;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& v) {
    v = Add(Mul(Set(c.momentum), v), g);
    p = Sub(p, Mul(Set(c.rate), Add(g, Mul(Set(c.momentum), v))));
  }
};
