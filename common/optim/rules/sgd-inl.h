// sgd: p -= r g. No include guard, see rules/all-inl.h.
struct Sgd {
  static constexpr int kSlots = 0;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g) {
    p = Sub(p, Mul(Set(c.rate), g));
  }
};
