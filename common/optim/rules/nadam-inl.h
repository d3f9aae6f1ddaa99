// nadam: m and v as adam; with mu_t = beta1 (1 - 0.96^(t momentum_decay) / 2)
// and M_t = mu_1 mu_2 ... mu_t,
//        p -= r ((1 - mu_t) g / (1 - M_t) + mu_(t+1) m / (1 - M_(t+1))) /
//             (sqrt(v / (1 - beta2^t)) + epsilon).
// As in the paper, and in PyTorch from 2 on; 1.13 without foreach has M_t mu_t
// mu_(t+1) for M_(t+1). Dozat 2016, "Incorporating Nesterov Momentum into
// Adam". The factors of g and m are Coefficients::gradient_rate and rate. No
// include guard, see rules/all-inl.h.
struct Nadam {
  static constexpr int kSlots = 2;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& m,
                       Real& v) {
    m = Add(Mul(Set(c.beta1), m), Mul(Set(c.one_minus_beta1), g));
    v = Add(Mul(Set(c.beta2), v), Mul(Mul(Set(c.one_minus_beta2), g), g));
    const Real root = Add(Mul(Sqrt(v), Set(c.root_scale)), Set(c.epsilon));
    const Real ahead = Add(Mul(Set(c.gradient_rate), g), Mul(Set(c.rate), m));
    p = Sub(Mul(p, Set(c.keep)), Div(ahead, root));
  }
};
