// rmsprop: s = alpha s + (1 - alpha) g^2; u = g / (sqrt(s) + epsilon);
//          p -= r u. Tieleman and Hinton 2012, lecture 6.5.
// centered: a = alpha a + (1 - alpha) g; the root is of s - a^2. Graves 2013.
// Where rounding makes that negative, it counts as 0 (PyTorch has a NaN).
// momentum: v = momentum v + u; p -= r v.
// alpha is Coefficients::beta2. Slots are s, then a, then v, those that there
// are. No include guard, see rules/all-inl.h.
struct Rmsprop {
  static constexpr int kSlots = 1;

  // u, without centering.
  SL_FORMULA Real Scaled(const Coefficients& c, Real g, Real& s) {
    s = Add(Mul(Set(c.beta2), s), Mul(Mul(Set(c.one_minus_beta2), g), g));
    return Div(g, Add(Sqrt(s), Set(c.epsilon)));
  }
  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s) {
    p = Sub(p, Mul(Set(c.rate), Scaled(c, g, s)));
  }
};

struct RmspropMomentum {
  static constexpr int kSlots = 2;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s,
                       Real& v) {
    v = Add(Mul(Set(c.momentum), v), Rmsprop::Scaled(c, g, s));
    p = Sub(p, Mul(Set(c.rate), v));
  }
};

struct CenteredRmsprop {
  static constexpr int kSlots = 2;

  SL_FORMULA Real Scaled(const Coefficients& c, Real g, Real& s, Real& a) {
    s = Add(Mul(Set(c.beta2), s), Mul(Mul(Set(c.one_minus_beta2), g), g));
    a = Add(Mul(Set(c.beta2), a), Mul(Set(c.one_minus_beta2), g));
    // The second operand is taken where the first is not larger: a NaN stays.
    const Real variance = Larger(Set(0), Sub(s, Mul(a, a)));
    return Div(g, Add(Sqrt(variance), Set(c.epsilon)));
  }
  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s,
                       Real& a) {
    p = Sub(p, Mul(Set(c.rate), Scaled(c, g, s, a)));
  }
};

struct CenteredRmspropMomentum {
  static constexpr int kSlots = 3;

  SL_FORMULA void Step(const Coefficients& c, Real& p, Real g, Real& s, Real& a,
                       Real& v) {
    v = Add(Mul(Set(c.momentum), v), CenteredRmsprop::Scaled(c, g, s, a));
    p = Sub(p, Mul(Set(c.rate), v));
  }
};
