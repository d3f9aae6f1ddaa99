// adadelta: s = rho s + (1 - rho) g^2; d = sqrt(a + epsilon) / sqrt(s +
//           epsilon) g; a = rho a + (1 - rho) d^2; p -= r d.
// Zeiler 2012, "ADADELTA: An Adaptive Learning Rate Method". rho is
// Coefficients::beta2. No include guard, see rules/all-inl.h.
struct Adadelta {
  static constexpr int kSlots = 2;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s,
                       Real& a) {
    s = Add(Mul(Set(c.beta2), s), Mul(Mul(Set(c.one_minus_beta2), g), g));
    const Real root = Sqrt(Add(s, Set(c.epsilon)));
    const Real d = Mul(Div(Sqrt(Add(a, Set(c.epsilon))), root), g);
    a = Add(Mul(Set(c.beta2), a), Mul(Mul(Set(c.one_minus_beta2), d), d));
    p = Sub(p, Mul(Set(c.rate), d));
  }
};
