// adamax: m = beta1 m + (1 - beta1) g; u = max(beta2 u, |g| + epsilon);
//         p -= r / (1 - beta1^t) m / u.
// Kingma and Ba 2015, section 7.1, with epsilon where PyTorch has it.
// Coefficients::rate has the division by 1 - beta1^t in it. No include guard,
// see rules/all-inl.h.
struct Adamax {
  static constexpr int kSlots = 2;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& m,
                       Real& u) {
    m = Add(Mul(Set(c.beta1), m), Mul(Set(c.one_minus_beta1), g));
    u = Larger(Mul(Set(c.beta2), u), Add(Abs(g), Set(c.epsilon)));
    p = Sub(p, Div(Mul(Set(c.rate), m), u));
  }
};
