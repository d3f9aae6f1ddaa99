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

namespace slackline {
namespace {

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
  std::array<std::vector<float>, 2> slots;

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
  args.slots = {state->slots[0].data(), state->slots[1].data()};
  args.gradients = pointers;
  args.elements = state->parameters.size();
  args.gradient_scale = scale;
  args.learning_rate = RateAt(optimizer, update);
  args.update_count = update;
  optimizer.Apply(args);
}

// ---- The meaning -----------------------------------------------------------

std::unique_ptr<torch::optim::Optimizer> MakeTorch(
    const config::Optimizer& config, const torch::Tensor& parameters) {
  const std::vector<torch::Tensor> list = {parameters};
  const auto sgd = [&](const auto& ours, double momentum, bool nesterov) {
    return std::make_unique<torch::optim::SGD>(
        list, torch::optim::SGDOptions(ours.learning_rate())
                  .momentum(momentum)
                  .nesterov(nesterov)
                  .weight_decay(ours.weight_decay()));
  };
  switch (config.kind_case()) {
    case config::Optimizer::kSgd:
      return sgd(config.sgd(), 0, false);
    case config::Optimizer::kMomentum:
      return sgd(config.momentum(), config.momentum().momentum(), false);
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
                    .weight_decay(config.adam().weight_decay()));
    case config::Optimizer::kAdamw:
      return std::make_unique<torch::optim::AdamW>(
          list, torch::optim::AdamWOptions(config.adamw().learning_rate())
                    .betas({config.adamw().beta1(), config.adamw().beta2()})
                    .eps(config.adamw().epsilon())
                    .weight_decay(config.adamw().weight_decay()));
    case config::Optimizer::KIND_NOT_SET:
      break;
  }
  return nullptr;
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
      for (int64_t update = 1; update <= 20; ++update) {
        const Gradients gradients = RandomGradients(rng, 1, elements);
        ApplyAll(optimizer, gradients, 1, update, &state);
        twin.mutable_grad() = torch::tensor(gradients[0]);
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

// ---- The bits --------------------------------------------------------------

// The header's formulas, one element after the other, each operation in float.
void ScalarTwin(const config::Optimizer& config, const Gradients& gradients,
                float scale, float rate, int64_t update, State* state) {
  const auto float_of = [](double value) { return static_cast<float>(value); };
  for (size_t i = 0; i < state->parameters.size(); ++i) {
    float& p = state->parameters[i];
    float& first = state->slots[0][i];
    float& second = state->slots[1][i];
    float g = gradients[0][i];
    for (size_t k = 1; k < gradients.size(); ++k) g += gradients[k][i];
    g *= scale;
    const auto momentum = [&](const auto& c, bool nesterov) {
      const float factor = float_of(c.momentum());
      g += float_of(c.weight_decay()) * p;
      first = factor * first + g;
      p -= rate * (nesterov ? g + factor * first : first);
    };
    const auto adam = [&](const auto& c, float l2, double decay) {
      g += l2 * p;
      const double correction1 = 1 - std::pow(c.beta1(), update);
      const double correction2 = 1 - std::pow(c.beta2(), update);
      first = float_of(c.beta1()) * first + float_of(1 - c.beta1()) * g;
      second = float_of(c.beta2()) * second + float_of(1 - c.beta2()) * g * g;
      const float root =
          std::sqrt(second) * float_of(1 / std::sqrt(correction2)) +
          float_of(c.epsilon());
      p = p * float_of(1 - rate * decay) -
          float_of(rate / correction1) * first / root;
    };
    switch (config.kind_case()) {
      case config::Optimizer::kSgd:
        g += float_of(config.sgd().weight_decay()) * p;
        p -= rate * g;
        break;
      case config::Optimizer::kMomentum:
        momentum(config.momentum(), false);
        break;
      case config::Optimizer::kNesterov:
        momentum(config.nesterov(), true);
        break;
      case config::Optimizer::kAdagrad:
        g += float_of(config.adagrad().weight_decay()) * p;
        first += g * g;
        p -= rate * g /
             (std::sqrt(first) + float_of(config.adagrad().epsilon()));
        break;
      case config::Optimizer::kAdam:
        adam(config.adam(), float_of(config.adam().weight_decay()), 0);
        break;
      case config::Optimizer::kAdamw:
        adam(config.adamw(), 0, config.adamw().weight_decay());
        break;
      case config::Optimizer::KIND_NOT_SET:
        FAIL();
    }
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
          c, sum, state->parameters[i], state->slots[0][i], state->slots[1][i]);
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
        args.learning_rate = RateAt(optimizer, update);
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
    args.slots = {state->slots[0].data() + begin,
                  state->slots[1].data() + begin};
    args.gradients = pointers;
    args.elements = count;
    args.gradient_scale = scale;
    args.learning_rate = RateAt(optimizer, update);
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
  args.slots = {state.slots[0].data(), state.slots[1].data()};
  args.gradients = absl::MakeConstSpan(&pointer, 1);
  args.elements = 0;
  args.learning_rate = 1;
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

}  // namespace
}  // namespace slackline
