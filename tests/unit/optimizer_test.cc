// Goal: an update is what torch::optim computes, and its bits depend on nothing
// but the numbers that go in.
// Method: LibTorch is the twin for the meaning, to rounding; a scalar loop is
// the twin for the bits, exactly.
#include "common/optim/optimizer.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/optim/formulas.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "tests/support/optimizers.h"

namespace slackline::optimizer_test {

using ::testing::HasSubstr;

std::vector<float> RandomFloats(Rng& rng, size_t count) {
  std::vector<float> floats(count);
  for (float& value : floats) value = static_cast<float>(rng.Normal());
  return floats;
}

// Changes at every update, as under a schedule.
float RateAt(const Optimizer& optimizer, int64_t update) {
  return static_cast<float>(optimizer.learning_rate() / (1 + 0.1 * update));
}

struct State {
  std::vector<float> parameters;
  std::array<std::vector<float>, Optimizer::kSlotsMax> slots;

  explicit State(std::vector<float> initial) : parameters(std::move(initial)) {
    for (std::vector<float>& slot : slots) slot.resize(parameters.size());
  }
};

using Gradients = std::vector<std::vector<float>>;

Gradients RandomGradients(Rng& rng, size_t gradients, size_t elements) {
  Gradients result;
  for (size_t k = 0; k < gradients; ++k) {
    result.push_back(RandomFloats(rng, elements));
  }
  return result;
}

// Updates the whole state in place, from aligned gradients.
void ApplyAll(const Optimizer& optimizer, const Gradients& gradients,
              float scale, int64_t update, State* state) {
  std::vector<const std::byte*> pointers;
  for (const std::vector<float>& gradient : gradients) {
    pointers.push_back(reinterpret_cast<const std::byte*>(gradient.data()));
  }
  Optimizer::ApplyArgs args;
  args.in = args.out = state->parameters.data();
  for (size_t k = 0; k < state->slots.size(); ++k)
    args.slots[k] = state->slots[k].data();
  args.gradients = pointers;
  args.elements = state->parameters.size();
  args.gradient_scale = scale;
  args.numbers.learning_rate = RateAt(optimizer, update);
  args.update_count = update;
  optimizer.Apply(args);
}

// ---- The meaning -----------------------------------------------------------

std::unique_ptr<torch::optim::Optimizer> MakeTorch(
    const config::Optimizer& config, const torch::Tensor& parameters) {
  const std::vector<torch::Tensor> list = {parameters};
  const auto sgd = [&](const auto& ours, double momentum, bool nesterov,
                       double dampening = 0) {
    return std::make_unique<torch::optim::SGD>(
        list, torch::optim::SGDOptions(ours.learning_rate())
                  .momentum(momentum)
                  .nesterov(nesterov)
                  .dampening(dampening)
                  .weight_decay(ours.weight_decay()));
  };
  switch (config.kind_case()) {
    case config::Optimizer::kSgd:
      return sgd(config.sgd(), 0, false);
    case config::Optimizer::kMomentum:
      return sgd(config.momentum(), config.momentum().momentum(), false,
                 config.momentum().dampening());
    case config::Optimizer::kNesterov:
      return sgd(config.nesterov(), config.nesterov().momentum(), true);
    case config::Optimizer::kAdagrad:
      return std::make_unique<torch::optim::Adagrad>(
          list, torch::optim::AdagradOptions(config.adagrad().learning_rate())
                    .eps(config.adagrad().epsilon())
                    .weight_decay(config.adagrad().weight_decay()));
    case config::Optimizer::kAdam:
      return std::make_unique<torch::optim::Adam>(
          list, torch::optim::AdamOptions(config.adam().learning_rate())
                    .betas({config.adam().beta1(), config.adam().beta2()})
                    .eps(config.adam().epsilon())
                    .amsgrad(config.adam().amsgrad())
                    .weight_decay(config.adam().weight_decay()));
    case config::Optimizer::kAdamw:
      return std::make_unique<torch::optim::AdamW>(
          list, torch::optim::AdamWOptions(config.adamw().learning_rate())
                    .betas({config.adamw().beta1(), config.adamw().beta2()})
                    .eps(config.adamw().epsilon())
                    .amsgrad(config.adamw().amsgrad())
                    .weight_decay(config.adamw().weight_decay()));
    case config::Optimizer::kRmsprop:
      return std::make_unique<torch::optim::RMSprop>(
          list, torch::optim::RMSpropOptions(config.rmsprop().learning_rate())
                    .alpha(config.rmsprop().alpha())
                    .eps(config.rmsprop().epsilon())
                    .momentum(config.rmsprop().momentum())
                    .centered(config.rmsprop().centered())
                    .weight_decay(config.rmsprop().weight_decay()));
    default:  // Not in LibTorch: python/tests/test_rules.py has PyTorch's.
      return nullptr;
  }
}

// Tolerance: 1e-6 of the parameter, or of 1 where that is larger. Rounding
// differs in each step, because LibTorch may fuse products and sums.
TEST(OptimizerTest, StepsAreThoseOfTorch) {
  for (const std::string& text : OptimizerTexts()) {
    for (const size_t elements : {1, 7, 1003}) {
      SCOPED_TRACE(absl::StrCat(text, " elements ", elements));
      Rng rng(elements);
      const Optimizer optimizer = MakeOptimizer(text);
      State state(RandomFloats(rng, elements));
      torch::Tensor twin =
          torch::tensor(state.parameters).set_requires_grad(true);
      const auto torch_optimizer = MakeTorch(ParseOptimizer(text), twin);
      if (torch_optimizer == nullptr) continue;
      for (int64_t update = 1; update <= 20; ++update) {
        const Gradients gradients = RandomGradients(rng, 1, elements);
        ApplyAll(optimizer, gradients, 1, update, &state);
        twin.mutable_grad() = torch::tensor(gradients[0]);
        if (ParseOptimizer(text).maximize())
          twin.mutable_grad() = -twin.mutable_grad();
        for (auto& group : torch_optimizer->param_groups()) {
          group.options().set_lr(RateAt(optimizer, update));
        }
        torch_optimizer->step();

        const float* expected = twin.data_ptr<float>();
        for (size_t i = 0; i < elements; ++i) {
          ASSERT_NEAR(state.parameters[i], expected[i],
                      1e-6 * std::max(1.0f, std::fabs(expected[i])))
              << "element " << i << " after update " << update;
        }
      }
    }
  }
}

// As a scheduler that cycles the momentum asks for.
TEST(OptimizerTest, AMomentumOfAnUpdateIsThatOfTorch) {
  for (const char* const text :
       {"momentum { learning_rate: 0.1 }", "nesterov { learning_rate: 0.1 }",
        "momentum { learning_rate: 0.1 dampening: 0.5 }",
        "rmsprop { learning_rate: 0.01 momentum: 0.9 }",
        "adam { learning_rate: 0.01 }",
        "adamw { learning_rate: 0.01 amsgrad: true }"}) {
    SCOPED_TRACE(text);
    constexpr size_t kElements = 7;
    Rng rng(1);
    const Optimizer optimizer = MakeOptimizer(text);
    State state(RandomFloats(rng, kElements));
    torch::Tensor twin =
        torch::tensor(state.parameters).set_requires_grad(true);
    const auto torch_optimizer = MakeTorch(ParseOptimizer(text), twin);
    for (int64_t update = 1; update <= 20; ++update) {
      const Gradients gradients = RandomGradients(rng, 1, kElements);
      const double momentum = 0.5 + 0.02 * static_cast<double>(update);
      const double rate = RateAt(optimizer, update);
      const auto* const bytes =
          reinterpret_cast<const std::byte*>(gradients[0].data());
      Optimizer::ApplyArgs args;
      args.in = args.out = state.parameters.data();
      for (size_t k = 0; k < state.slots.size(); ++k)
        args.slots[k] = state.slots[k].data();
      args.gradients = absl::MakeConstSpan(&bytes, 1);
      args.elements = kElements;
      args.numbers = {.learning_rate = rate, .momentum = momentum};
      args.update_count = update;
      optimizer.Apply(args);
      twin.mutable_grad() = torch::tensor(gradients[0]);
      for (auto& group : torch_optimizer->param_groups()) {
        group.options().set_lr(rate);
        auto& options = group.options();
        if (auto* const sgd =
                dynamic_cast<torch::optim::SGDOptions*>(&options)) {
          sgd->momentum(momentum);
        } else if (auto* const rmsprop =
                       dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
          rmsprop->momentum(momentum);
        } else if (auto* const adam =
                       dynamic_cast<torch::optim::AdamOptions*>(&options)) {
          adam->betas({momentum, 0.999});
        } else {
          dynamic_cast<torch::optim::AdamWOptions&>(options).betas(
              {momentum, 0.999});
        }
      }
      torch_optimizer->step();
      const float* expected = twin.data_ptr<float>();
      for (size_t i = 0; i < kElements; ++i) {
        ASSERT_NEAR(state.parameters[i], expected[i],
                    1e-6 * std::max(1.0f, std::fabs(expected[i])))
            << "element " << i << " after update " << update;
      }
    }
  }
}

// The product of NAdam's momenta is a function of the count of updates; here it
// is multiplied out.
TEST(OptimizerTest, NadamsNumbersAreThoseOfTheProductOfItsMomenta) {
  for (const double beta1 : {0.0, 0.5, 0.9, 0.9999}) {
    for (const double decay : {0.0, 1e-9, 4e-3, 0.5, 30.0}) {
      SCOPED_TRACE(absl::StrCat("beta1 ", beta1, " decay ", decay));
      const Optimizer optimizer =
          MakeOptimizer(absl::StrCat("nadam { learning_rate: 1 beta1: ", beta1,
                                     " momentum_decay: ", decay, " }"));
      const auto mu = [&](double t) {
        return beta1 * (1 - 0.5 * std::pow(0.96, t * decay));
      };
      double product = 1;
      for (int64_t t = 1; t <= 20000; ++t) {
        const auto update = static_cast<double>(t);
        product *= mu(update);
        if (t > 50 && t % 997 != 0) continue;
        Optimizer::ApplyArgs args;
        args.numbers.learning_rate = 1;
        args.update_count = t;
        const optim::Coefficients c = optimizer.CoefficientsOf(args);
        const double of_gradient = (1 - mu(update)) / (1 - product);
        const double of_mean = mu(update + 1) / (1 - product * mu(update + 1));
        ASSERT_NEAR(c.gradient_rate, of_gradient, 1e-6 * of_gradient) << t;
        ASSERT_NEAR(c.rate, of_mean, 1e-6 * of_mean) << t;
      }
    }
  }
}

// ---- The bits --------------------------------------------------------------

float FloatOf(double value) { return static_cast<float>(value); }

// One step of one element by a published formula, each operation in float. The
// state is that of the element.
class ScalarRule {
 public:
  ScalarRule(const config::Optimizer& config, float rate, int64_t update)
      : config_(config), rate_(rate), t_(static_cast<double>(update)) {}

  void Step(float g, float& p, float& first, float& second, float& third) {
    if (config_.maximize()) g = -g;
    switch (config_.kind_case()) {
      case config::Optimizer::kSgd:
        g += FloatOf(config_.sgd().weight_decay()) * p;
        p -= rate_ * g;
        break;
      case config::Optimizer::kMomentum:
        Momentum(config_.momentum(), config_.momentum().dampening(), false, g,
                 p, first);
        break;
      case config::Optimizer::kNesterov:
        Momentum(config_.nesterov(), 0, true, g, p, first);
        break;
      case config::Optimizer::kAdagrad:
        g += FloatOf(config_.adagrad().weight_decay()) * p;
        first += g * g;
        p -= rate_ * g /
             (std::sqrt(first) + FloatOf(config_.adagrad().epsilon()));
        break;
      case config::Optimizer::kAdam:
        g += FloatOf(config_.adam().weight_decay()) * p;
        Adam(config_.adam(), 0, g, p, first, second, third);
        break;
      case config::Optimizer::kAdamw:
        Adam(config_.adamw(), config_.adamw().weight_decay(), g, p, first,
             second, third);
        break;
      case config::Optimizer::kRmsprop:
        Rmsprop(config_.rmsprop(), g, p, first, second, third);
        break;
      case config::Optimizer::kAdadelta: {
        const config::Adadelta& c = config_.adadelta();
        g += FloatOf(c.weight_decay()) * p;
        Mean(c.rho(), g, g, first);
        const float delta = std::sqrt(second + FloatOf(c.epsilon())) /
                            std::sqrt(first + FloatOf(c.epsilon())) * g;
        Mean(c.rho(), delta, delta, second);
        p -= rate_ * delta;
        break;
      }
      case config::Optimizer::kAdamax: {
        const config::Adamax& c = config_.adamax();
        g += FloatOf(c.weight_decay()) * p;
        Mean(c.beta1(), g, 1, first);
        second = std::max(FloatOf(c.beta2()) * second,
                          std::fabs(g) + FloatOf(c.epsilon()));
        p -= FloatOf(rate_ / (1 - std::pow(c.beta1(), t_))) * first / second;
        break;
      }
      case config::Optimizer::kNadam:
        Nadam(config_.nadam(), g, p, first, second);
        break;
      case config::Optimizer::kRadam:
        Radam(config_.radam(), g, p, first, second);
        break;
      case config::Optimizer::kLion: {
        const config::Lion& c = config_.lion();
        float mixed = first;
        Mean(c.beta1(), g, 1, mixed);
        const float sign = mixed > 0 ? 1 : mixed < 0 ? -1 : 0;
        p = p * FloatOf(1 - rate_ * c.weight_decay()) - rate_ * sign;
        Mean(c.beta2(), g, 1, first);
        break;
      }
      case config::Optimizer::KIND_NOT_SET:
        FAIL();
    }
  }

 private:
  // mean = beta mean + (1 - beta) a b.
  static void Mean(double beta, float a, float b, float& mean) {
    mean = FloatOf(beta) * mean + FloatOf(1 - beta) * a * b;
  }
  template <typename Block>
  void Momentum(const Block& c, double dampening, bool nesterov, float g,
                float& p, float& v) const {
    const float factor = FloatOf(c.momentum());
    g += FloatOf(c.weight_decay()) * p;
    v = factor * v + (t_ == 1 ? g : FloatOf(1 - dampening) * g);
    p -= rate_ * (nesterov ? g + factor * v : v);
  }
  template <typename Block>
  void Adam(const Block& c, double decay, float g, float& p, float& m, float& v,
            float& largest) const {
    Mean(c.beta1(), g, 1, m);
    Mean(c.beta2(), g, g, v);
    if (c.amsgrad()) largest = std::max(largest, v);
    const float root = std::sqrt(c.amsgrad() ? largest : v) *
                           FloatOf(1 / std::sqrt(1 - std::pow(c.beta2(), t_))) +
                       FloatOf(c.epsilon());
    p = p * FloatOf(1 - rate_ * decay) -
        FloatOf(rate_ / (1 - std::pow(c.beta1(), t_))) * m / root;
  }
  void Rmsprop(const config::Rmsprop& c, float g, float& p, float& s,
               float& second, float& third) const {
    g += FloatOf(c.weight_decay()) * p;
    Mean(c.alpha(), g, g, s);
    float variance = s;
    if (c.centered()) {
      Mean(c.alpha(), g, 1, second);
      variance = std::max(0.0f, s - second * second);
    }
    const float step = g / (std::sqrt(variance) + FloatOf(c.epsilon()));
    if (c.momentum() == 0) {
      p -= rate_ * step;
      return;
    }
    float& v = c.centered() ? third : second;
    v = FloatOf(c.momentum()) * v + step;
    p -= rate_ * v;
  }
  void Nadam(const config::NAdam& c, float g, float& p, float& m,
             float& v) const {
    const auto mu = [&](double t) {
      return c.beta1() * (1 - 0.5 * std::pow(0.96, t * c.momentum_decay()));
    };
    double product = 1;
    for (double i = 1; i <= t_; ++i) product *= mu(i);
    if (!c.decoupled_weight_decay()) g += FloatOf(c.weight_decay()) * p;
    Mean(c.beta1(), g, 1, m);
    Mean(c.beta2(), g, g, v);
    const float root =
        std::sqrt(v) * FloatOf(1 / std::sqrt(1 - std::pow(c.beta2(), t_))) +
        FloatOf(c.epsilon());
    const float ahead =
        FloatOf(rate_ * (1 - mu(t_)) / (1 - product)) * g +
        FloatOf(rate_ * mu(t_ + 1) / (1 - product * mu(t_ + 1))) * m;
    if (c.decoupled_weight_decay()) p *= FloatOf(1 - rate_ * c.weight_decay());
    p -= ahead / root;
  }
  void Radam(const config::RAdam& c, float g, float& p, float& m,
             float& v) const {
    if (!c.decoupled_weight_decay()) g += FloatOf(c.weight_decay()) * p;
    Mean(c.beta1(), g, 1, m);
    Mean(c.beta2(), g, g, v);
    if (c.decoupled_weight_decay()) p *= FloatOf(1 - rate_ * c.weight_decay());
    const double rate = rate_ / (1 - std::pow(c.beta1(), t_));
    const double correction2 = 1 - std::pow(c.beta2(), t_);
    const double most = 2 / (1 - c.beta2()) - 1;
    const double rho = most - 2 * t_ * std::pow(c.beta2(), t_) / correction2;
    if (rho <= 5) {
      p -= FloatOf(rate) * m;
      return;
    }
    const double rectified = std::sqrt((rho - 4) * (rho - 2) * most /
                                       ((most - 4) * (most - 2) * rho));
    p -= FloatOf(rate * rectified * std::sqrt(correction2)) * m /
         (std::sqrt(v) + FloatOf(c.epsilon()));
  }

  const config::Optimizer& config_;
  const float rate_;
  const double t_;
};

void ScalarTwin(const config::Optimizer& config, const Gradients& gradients,
                float scale, float rate, int64_t update, State* state) {
  ScalarRule rule(config, rate, update);
  for (size_t i = 0; i < state->parameters.size(); ++i) {
    float g = gradients[0][i];
    for (size_t k = 1; k < gradients.size(); ++k) g += gradients[k][i];
    rule.Step(g * scale, state->parameters[i], state->slots[0][i],
              state->slots[1][i], state->slots[2][i]);
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectSameBits(const State& a, const State& b) {
  EXPECT_TRUE(SameBits(a.parameters, b.parameters)) << "parameters differ";
  EXPECT_TRUE(SameBits(a.slots[0], b.slots[0])) << "slot 0 differs";
  EXPECT_TRUE(SameBits(a.slots[1], b.slots[1])) << "slot 1 differs";
  EXPECT_TRUE(SameBits(a.slots[2], b.slots[2])) << "slot 2 differs";
}

TEST(OptimizerTest, GradientsAreSummedInOrderAndAppliedAsByAScalarLoop) {
  for (const std::string& text : OptimizerTexts()) {
    const config::Optimizer config = ParseOptimizer(text);
    const Optimizer optimizer = MakeOptimizer(text);
    for (const size_t gradient_count :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 64, 256}) {
      // Past the block of partial sums, and with a rest.
      const size_t elements = gradient_count > 8 ? 2051 : 37;
      SCOPED_TRACE(absl::StrCat(text, " gradients ", gradient_count));
      Rng rng(gradient_count);
      State state(RandomFloats(rng, elements));
      State twin = state;
      const float scale = 1.0f / static_cast<float>(gradient_count);
      for (int64_t update = 1; update <= 3; ++update) {
        const Gradients gradients =
            RandomGradients(rng, gradient_count, elements);
        ApplyAll(optimizer, gradients, scale, update, &state);
        ScalarTwin(config, gradients, scale, RateAt(optimizer, update), update,
                   &twin);
      }
      ExpectSameBits(state, twin);
    }
  }
}

TEST(OptimizerTest, EveryInstructionSetGivesTheSameBits) {
  const auto targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    Rng rng(1);
    const State initial(RandomFloats(rng, 101));
    const Gradients gradients = RandomGradients(rng, 3, 101);
    State expected = initial;
    ApplyAll(optimizer, gradients, 0.5f, 1, &expected);
    for (const auto target : targets) {
      SCOPED_TRACE(absl::StrCat(text, " on ", hwy::TargetName(target)));
      hwy::SetSupportedTargetsForTest(target);
      State state = initial;
      ApplyAll(optimizer, gradients, 0.5f, 1, &state);
      ExpectSameBits(state, expected);
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

// With the formulas in floats, as GPUs use them.
void UpdateElements(optim::Rule rule, const optim::Coefficients& c,
                    const Gradients& gradients, State* state) {
  optim::scalar::WithFormula(rule, [&](auto formula) {
    for (size_t i = 0; i < state->parameters.size(); ++i) {
      float sum = gradients[0][i];
      for (size_t k = 1; k < gradients.size(); ++k) sum += gradients[k][i];
      optim::scalar::Update<decltype(formula)>(
          c, sum, state->parameters[i], state->slots[0][i], state->slots[1][i],
          state->slots[2][i]);
    }
  });
}

TEST(OptimizerTest, FormulasForOneElementGiveTheBitsOfVectors) {
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    for (const size_t gradient_count : {1, 3, 20}) {
      SCOPED_TRACE(absl::StrCat(text, " gradients ", gradient_count));
      Rng rng(gradient_count);
      State vectors(RandomFloats(rng, 3001));
      State elements = vectors;
      for (int64_t update = 1; update <= 5; ++update) {
        const Gradients gradients = RandomGradients(rng, gradient_count, 3001);
        ApplyAll(optimizer, gradients, 0.3f, update, &vectors);
        Optimizer::ApplyArgs args;
        args.gradient_scale = 0.3f;
        args.numbers.learning_rate = RateAt(optimizer, update);
        args.update_count = update;
        UpdateElements(optimizer.rule(), optimizer.CoefficientsOf(args),
                       gradients, &elements);
      }
      ExpectSameBits(vectors, elements);
    }
  }
}

// Applies one update in pieces of random sizes; each piece in place or not, its
// gradients at any byte alignment.
void ApplyInPieces(const Optimizer& optimizer, const Gradients& gradients,
                   float scale, int64_t update, Rng& rng, State* state) {
  const size_t elements = state->parameters.size();
  for (size_t begin = 0; begin < elements;) {
    const size_t count =
        std::min(elements - begin, static_cast<size_t>(rng.Between(1, 600)));
    std::vector<std::vector<std::byte>> frames;
    std::vector<const std::byte*> pointers;
    for (const std::vector<float>& gradient : gradients) {
      const size_t shift = rng.Below(64);
      // Exactly as long as needed: a sanitizer sees a read past the end.
      frames.emplace_back(shift + count * sizeof(float));
      std::memcpy(frames.back().data() + shift, gradient.data() + begin,
                  count * sizeof(float));
      pointers.push_back(frames.back().data() + shift);
    }
    std::vector<float> fresh(count);
    const bool in_place = rng.Chance(0.5);
    Optimizer::ApplyArgs args;
    args.in = state->parameters.data() + begin;
    args.out = in_place ? state->parameters.data() + begin : fresh.data();
    for (size_t k = 0; k < state->slots.size(); ++k)
      args.slots[k] = state->slots[k].data() + begin;
    args.gradients = pointers;
    args.elements = count;
    args.gradient_scale = scale;
    args.numbers.learning_rate = RateAt(optimizer, update);
    args.update_count = update;
    const std::vector<float> before(args.in, args.in + count);
    optimizer.Apply(args);
    if (!in_place) {
      EXPECT_TRUE(SameBits(before, {args.in, args.in + count}))
          << "an update out of place changed its input";
      std::copy(fresh.begin(), fresh.end(), state->parameters.begin() + begin);
    }
    begin += count;
  }
}

TEST(OptimizerTest, CutsAlignmentAndPlaceDoNotChangeBits) {
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(absl::StrCat(text, " seed ", seed));
      Rng rng(seed);
      const size_t elements = rng.Between(1, 3000);
      const size_t gradient_count = rng.Between(1, 20);
      State whole(RandomFloats(rng, elements));
      State pieces = whole;
      for (int64_t update = 1; update <= 2; ++update) {
        const Gradients gradients =
            RandomGradients(rng, gradient_count, elements);
        ApplyAll(optimizer, gradients, 0.25f, update, &whole);
        ApplyInPieces(optimizer, gradients, 0.25f, update, rng, &pieces);
      }
      ExpectSameBits(whole, pieces);
    }
  }
}

TEST(OptimizerTest, NoElementsLeaveEverythingAsItIs) {
  const Optimizer optimizer = MakeOptimizer("adam { learning_rate: 1 }");
  State state({1, 2, 3});
  const std::vector<float> gradient(3, 1);
  const std::byte* pointer =
      reinterpret_cast<const std::byte*>(gradient.data());
  Optimizer::ApplyArgs args;
  args.in = args.out = state.parameters.data();
  for (size_t k = 0; k < state.slots.size(); ++k)
    args.slots[k] = state.slots[k].data();
  args.gradients = absl::MakeConstSpan(&pointer, 1);
  args.elements = 0;
  args.numbers.learning_rate = 1;
  optimizer.Apply(args);
  ExpectSameBits(state, State({1, 2, 3}));
}

// ---- The config ------------------------------------------------------------

TEST(OptimizerTest, StatePerParameterFollowsTheKind) {
  EXPECT_EQ(MakeOptimizer("sgd { learning_rate: 1 }").slot_count(), 0);
  EXPECT_EQ(MakeOptimizer("momentum { learning_rate: 1 }").slot_count(), 1);
  EXPECT_EQ(MakeOptimizer("nesterov { learning_rate: 1 }").slot_count(), 1);
  EXPECT_EQ(MakeOptimizer("adagrad { learning_rate: 1 }").slot_count(), 1);
  EXPECT_EQ(MakeOptimizer("adam { learning_rate: 1 }").slot_count(), 2);
  EXPECT_EQ(MakeOptimizer("adamw { learning_rate: 0.25 }").slot_count(), 2);
  EXPECT_EQ(MakeOptimizer("adamw { learning_rate: 0.25 }").learning_rate(),
            0.25);
  EXPECT_EQ(
      MakeOptimizer("adam { learning_rate: 1 amsgrad: true }").slot_count(), 3);
  const auto rmsprop = [](const char* rest) {
    return MakeOptimizer(
               absl::StrCat("rmsprop { learning_rate: 1 ", rest, " }"))
        .slot_count();
  };
  EXPECT_EQ(rmsprop(""), 1);
  EXPECT_EQ(rmsprop("momentum: 0.5"), 2);
  EXPECT_EQ(rmsprop("centered: true"), 2);
  EXPECT_EQ(rmsprop("centered: true momentum: 0.5"), 3);
}

TEST(OptimizerTest, AnUpdateMayReplaceTheMomentumWhereThereIsOne) {
  const auto momentum = [](const char* text) {
    return MakeOptimizer(text).momentum();
  };
  EXPECT_EQ(momentum("sgd { learning_rate: 1 }"), std::nullopt);
  EXPECT_EQ(momentum("momentum { learning_rate: 1 momentum: 0.5 }"), 0.5);
  EXPECT_EQ(momentum("adamw { learning_rate: 1 beta1: 0.8 }"), 0.8);
  EXPECT_EQ(momentum("rmsprop { learning_rate: 1 }"), std::nullopt);
  EXPECT_EQ(momentum("rmsprop { learning_rate: 1 momentum: 0.5 }"), 0.5);
  EXPECT_EQ(momentum("nadam { learning_rate: 1 }"), std::nullopt);
}

TEST(OptimizerTest, AMomentumOfABufferIsAboveZeroInAllUpdates) {
  const auto fault = [](const char* text, double momentum) {
    return MakeOptimizer(text).FaultOfMomentum(momentum);
  };
  for (const char* const text :
       {"momentum { learning_rate: 1 }",
        "nesterov { learning_rate: 1 momentum: 0.5 }",
        "rmsprop { learning_rate: 1 momentum: 0.5 }"}) {
    SCOPED_TRACE(text);
    EXPECT_EQ(fault(text, 0.25), "");
    for (const double bad : {0.0, 1e-60, -0.5, 1.0, 1 - 1e-9, std::nan("")}) {
      EXPECT_EQ(fault(text, bad),
                "above 0 and, as a float, below 1 is required");
    }
  }
  EXPECT_EQ(fault("momentum { learning_rate: 1 momentum: 0 }", 0), "")
      << "what the config has";
  EXPECT_EQ(fault("adam { learning_rate: 1 }", 0), "");
  for (const double bad : {-0.5, 1.0, 1 - 1e-9, std::nan("")}) {
    EXPECT_EQ(fault("adam { learning_rate: 1 }", bad),
              "at least 0 and, as a float, below 1 is required");
  }
  for (const char* const none :
       {"sgd { learning_rate: 1 }", "nadam { learning_rate: 1 }",
        "rmsprop { learning_rate: 1 }"}) {
    EXPECT_EQ(fault(none, 0.5),
              "the optimizer has none that a step may change");
  }
}

// Equal gradients make the variance of centered rmsprop 0, but for rounding.
TEST(OptimizerTest, ACenteredRootOfEqualGradientsIsNoNan) {
  for (const float gradient : {0.1f, 0.3f, 7.7f, -1e-3f}) {
    State state(std::vector<float>(5, 1.0f));
    const Optimizer optimizer =
        MakeOptimizer("rmsprop { learning_rate: 1e-9 centered: true }");
    for (int64_t update = 1; update <= 5000; ++update)
      ApplyAll(optimizer, {std::vector<float>(5, gradient)}, 1, update, &state);
    EXPECT_TRUE(std::isfinite(state.parameters[0])) << gradient;
  }
}

TEST(OptimizerTest, ImpossibleValuesAreRefusedByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "optimizer: is missing"},
      {"adam {}", "optimizer.adam.learning_rate: is missing"},
      {"sgd { learning_rate: 0 }", "optimizer.sgd.learning_rate: value is 0"},
      {"adagrad { learning_rate: -1 }",
       "optimizer.adagrad.learning_rate: value is -1"},
      {"sgd { learning_rate: nan }", "sgd.learning_rate: value is nan"},
      {"sgd { learning_rate: inf }", "sgd.learning_rate: value is inf"},
      {"sgd { learning_rate: 1e-60 }", "a 32-bit float above 0 is required"},
      {"sgd { learning_rate: 1 weight_decay: -0.5 }",
       "optimizer.sgd.weight_decay: value is -0.5"},
      {"momentum { learning_rate: 1 momentum: 1 }",
       "optimizer.momentum.momentum: value is 1"},
      {"nesterov { learning_rate: 1 momentum: -0.1 }",
       "optimizer.nesterov.momentum: value is -0.1"},
      {"adagrad { learning_rate: 1 epsilon: 0 }",
       "optimizer.adagrad.epsilon: value is 0"},
      {"adam { learning_rate: 1 beta1: 1.5 }",
       "optimizer.adam.beta1: value is 1.5"},
      {"adamw { learning_rate: 1 beta2: -2 }",
       "optimizer.adamw.beta2: value is -2"},
      {"momentum { learning_rate: 1 dampening: 1.5 }",
       "optimizer.momentum.dampening: value is 1.5"},
      {"rmsprop { learning_rate: 1 alpha: 1 }",
       "optimizer.rmsprop.alpha: value is 1"},
      {"rmsprop { learning_rate: 1 momentum: -1 }",
       "optimizer.rmsprop.momentum: value is -1"},
      {"adadelta { learning_rate: 1 rho: 1 }",
       "optimizer.adadelta.rho: value is 1"},
      {"adamax { learning_rate: 1 epsilon: 0 }",
       "optimizer.adamax.epsilon: value is 0"},
      {"nadam { learning_rate: 1 momentum_decay: -1 }",
       "optimizer.nadam.momentum_decay: value is -1"},
      {"radam { learning_rate: 1 beta2: 1 }",
       "optimizer.radam.beta2: value is 1"},
      {"lion { learning_rate: 1 beta1: 1 }",
       "optimizer.lion.beta1: value is 1"},
      {"adamw { learning_rate: 1 epsilon: -1 }",
       "optimizer.adamw.epsilon: value is -1"},
  };
  for (const auto& [text, message] : cases) {
    const absl::Status status =
        Optimizer::Create(ParseOptimizer(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << text;
  }
}

}  // namespace slackline::optimizer_test
