// Goal: the kernels that update and round on GPUs touch each element once, the
// right one, and nothing else.
// Method: the code of their threads runs here on the CPU, one thread after the
// other. What only a GPU can show is tested in tests/gpu.
#include "common/optim/update_body.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/floats/round_body.h"
#include "common/optim/finite_body.h"
#include "common/optim/optimizer_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/optimizers.h"
#include "tests/support/update_case.h"

namespace slackline::update_body_test {

using ::testing::HasSubstr;

void RunThreads(const Optimizer& optimizer, const Optimizer::ApplyArgs& args,
                size_t threads) {
  optim::CudaOperands operands;
  operands.in = args.in;
  operands.out = args.out;
  for (int slot = 0; slot < optimizer.slot_count(); ++slot) {
    operands.slots[slot] = args.slots[slot];
  }
  for (const std::byte* gradient : args.gradients) {
    operands.gradients[operands.gradient_count++] =
        reinterpret_cast<const float*>(gradient);
  }
  const Sweep sweep = optim::SweepOf(optimizer.rule(), operands, args.elements);
  optim::scalar::WithFormula(optimizer.rule(), [&](auto formula) {
    const optim::UpdateBody<decltype(formula)> body{
        optimizer.CoefficientsOf(args), operands};
    for (size_t thread = 0; thread < threads; ++thread) {
      sweep.Run(body, thread, threads);
    }
  });
}

TEST(FiniteBodyTest, ThreadsTogetherFindTheOneBadFloat) {
  for (size_t elements = 1; elements <= 40; ++elements) {
    for (size_t at = 0; at < elements; ++at) {
      for (const size_t threads : {size_t{1}, size_t{3}, elements}) {
        std::vector<float> floats(elements + 1, 2.0F);
        float* const from = floats.data() + elements % 2;
        Alignment alignment;
        alignment.Add(from, sizeof(float));
        const Sweep sweep = alignment.Over(elements);
        int found = 0;
        const auto run = [&] {
          for (size_t thread = 0; thread < threads; ++thread)
            sweep.Run(optim::FiniteBody{from, &found}, thread, threads);
        };
        run();
        ASSERT_EQ(found, 0);
        from[at] = at % 2 == 0 ? std::numeric_limits<float>::quiet_NaN()
                               : -std::numeric_limits<float>::infinity();
        run();
        ASSERT_EQ(found, 1) << at << " of " << elements;
      }
    }
  }
}

TEST(UpdateBodyTest, ThreadsTogetherLeaveTheBitsOfApply) {
  std::vector<const std::byte*> pointers;
  for (const std::string& text : OptimizerTexts()) {
    const Optimizer optimizer = MakeOptimizer(text);
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      Rng rng(seed);
      const Layout layout = static_cast<Layout>(seed % 3);
      const size_t elements = seed <= 30 ? seed / 3 : rng.Between(1, 500);
      const size_t gradients =
          rng.Chance(0.8) ? rng.Between(1, 3) : optim::kCudaGradientsMax;
      const size_t threads = rng.Between(1, 200);
      SCOPED_TRACE(absl::StrCat(text, " seed ", seed, " threads ", threads));
      UpdateCase expected = MakeUpdateCase(rng, elements, gradients, layout);
      UpdateCase actual = expected;
      optimizer.Apply(expected.ArgsAt(expected.floats(), &pointers));
      RunThreads(optimizer, actual.ArgsAt(actual.floats(), &pointers), threads);
      EXPECT_EQ(
          std::memcmp(expected.floats(), actual.floats(), expected.bytes()), 0);
    }
  }
}

TEST(UpdateBodyTest, OnlyArraysThatAgreeAreReadInVectors) {
  Rng rng(1);
  std::vector<const std::byte*> pointers;
  for (const Layout layout : {Layout::kAligned, Layout::kEquallyShifted}) {
    UpdateCase c = MakeUpdateCase(rng, 103, 1, layout);
    optim::CudaOperands operands;
    operands.in = operands.out = c.floats() + c.in;
    operands.gradients[0] = c.floats() + c.gradients[0];
    operands.gradient_count = 1;
    const auto sweep = [&] {
      return optim::SweepOf(optim::Rule::kSgd, operands, c.elements);
    };
    EXPECT_GE(sweep().vectors, 25u);
    EXPECT_LT(sweep().head, 4u);
    operands.gradients[0] += 1;
    EXPECT_EQ(sweep().vectors, 0u);
  }
}

TEST(RoundBodyTest, ThreadsTogetherRoundEveryElement) {
  constexpr uint16_t kGuard = 0xabcd;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    const size_t elements = seed <= 20 ? seed : rng.Between(1, 500);
    const size_t threads = rng.Between(1, 100);
    const size_t in_shift = rng.Below(4);
    const size_t out_shift = rng.Chance(0.5) ? in_shift : rng.Below(4);
    // Multiples of 16 bytes.
    std::vector<float4> in_blocks(elements / 4 + 2);
    std::vector<float4> out_blocks(elements / 8 + 2);
    float* const in = reinterpret_cast<float*>(in_blocks.data()) + in_shift;
    uint16_t* const out_begin = reinterpret_cast<uint16_t*>(out_blocks.data());
    uint16_t* const out_end = out_begin + 8 * out_blocks.size();
    std::fill(out_begin, out_end, kGuard);
    for (size_t i = 0; i < elements; ++i) {
      in[i] = static_cast<float>(rng.Normal());
    }

    RoundBody<HalfType::kFloat16> body{in, out_begin + out_shift};
    Alignment alignment;
    alignment.Add(body.in, sizeof(float));
    alignment.Add(body.out, sizeof(uint16_t));
    const Sweep sweep = alignment.Over(elements);
    const size_t head = (4 - in_shift) % 4;
    const bool agree = in_shift == out_shift && elements > head;
    EXPECT_EQ(sweep.vectors, agree ? (elements - head) / 4 : 0);
    for (size_t thread = 0; thread < threads; ++thread) {
      sweep.Run(body, thread, threads);
    }

    std::vector<uint16_t> expected(8 * out_blocks.size(), kGuard);
    for (size_t i = 0; i < elements; ++i) {
      expected[out_shift + i] = RoundToFloat16(in[i]);
    }
    EXPECT_EQ(std::vector<uint16_t>(out_begin, out_end), expected);
  }
}

TEST(OptimizerCudaArgumentsTest, TooManyGradientsAreRefused) {
  Rng rng(1);
  UpdateCase c = MakeUpdateCase(rng, 5, 65, Layout::kAligned);
  std::vector<const std::byte*> pointers;
  const absl::Status status =
      ApplyAsync(MakeOptimizer("sgd { learning_rate: 1 }"),
                 c.ArgsAt(c.floats(), &pointers), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("65 gradients"));
}

TEST(OptimizerCudaArgumentsTest, AGradientBetweenFloatsIsRefused) {
  Rng rng(1);
  UpdateCase c = MakeUpdateCase(rng, 5, 2, Layout::kAligned);
  std::vector<const std::byte*> pointers;
  const Optimizer::ApplyArgs args = c.ArgsAt(c.floats(), &pointers);
  pointers[1] += 1;
  const absl::Status status =
      ApplyAsync(MakeOptimizer("sgd { learning_rate: 1 }"), args, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("gradient 1 is at"));
}

TEST(OptimizerCudaArgumentsTest, AFailedLaunchIsReported) {
  if (WhyNoGpu().empty()) GTEST_SKIP() << "there is a GPU, so it succeeds";
  Rng rng(1);
  UpdateCase c = MakeUpdateCase(rng, 5, 1, Layout::kAligned);
  std::vector<const std::byte*> pointers;
  const absl::Status status =
      ApplyAsync(MakeOptimizer("sgd { learning_rate: 1 }"),
                 c.ArgsAt(c.floats(), &pointers), nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("launch of an"));
}

}  // namespace slackline::update_body_test
