// Goal: a model on a GPU computes what it computes on the CPU, and what goes
// between host and GPU arrives whole and in the right order. Method: the CPU
// model, with its own test, is the reference. Sums come in another order, and
// cuDNN may convolve by Winograd's method: each case has its tolerance. In
// large batches a maximum or a sign that is almost a tie may then fall on the
// other side, which changes single terms of a gradient.
#include "worker/model/cuda_model.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "common/floats/half.h"
#include "common/rng.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"

namespace slackline {
namespace {

using Floats = std::vector<float>;
using Tables = std::vector<Floats>;

// Of gradients of large batches, where near ties may fall either way. Those of
// other parameters or another batch differ by 1 and more.
constexpr double kWithTies = 0.02;

struct Case {
  std::string name;
  std::string config;
  int64_t features;
  int64_t classes;
  double tolerance;  // Of gradients, relative.
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

Floats Draw(size_t count, double scale, uint64_t seed) {
  Rng rng(seed);
  Floats values(count);
  for (float& value : values) value = static_cast<float>(scale * rng.Normal());
  return values;
}

Floats ToFloats(const Payload& payload) {
  Floats values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), payload.size());
  return values;
}

Payload ToPayload(const Floats& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

// |a - b| / |b|.
double RelativeDifference(const Floats& a, const Floats& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-30));
}

class OnGpu : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const absl::Status device = CheckModelDevice({.gpu = 0});
        !device.ok()) {
      GTEST_SKIP() << "not run: " << device.message();
    }
    ASSERT_TRUE(SetComputeThreads(1).ok());
    cpu_ = Create({});
    gpu_ = Create({.gpu = 0});
    for (int t = 0; t < tables(); ++t) {
      const size_t size = cpu_->parameter(t).size();
      LoadBoth(t,
               Draw(size, std::max(0.05, std::min(0.5, std::sqrt(2.0 / size))),
                    static_cast<uint64_t>(t)));
    }
  }

  std::unique_ptr<Model> Create(const ModelOptions& options) {
    config::Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(GetParam().config,
                                                              &config));
    auto model =
        CreateModel(config, GetParam().features, GetParam().classes, options);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  int tables() const { return static_cast<int>(cpu_->tables().size()); }
  void LoadBoth(int table, const Floats& values) {
    cpu_->Load(table, 0, ToPayload(values));
    gpu_->Load(table, 0, ToPayload(values));
  }

  struct Examples {
    Floats inputs;
    std::vector<int64_t> labels;
    Floats numbers;  // For linear regression.
    Batch batch() const {
      return {.examples = static_cast<int64_t>(labels.size()),
              .inputs = inputs.data(),
              .labels = labels.data(),
              .numbers = numbers.data()};
    }
  };
  Examples DrawExamples(int64_t count, uint64_t seed) const {
    Examples examples;
    examples.inputs =
        Draw(static_cast<size_t>(count * GetParam().features), 1, seed);
    Rng rng(seed + 1000);
    for (int64_t i = 0; i < count; ++i)
      examples.labels.push_back(
          rng.Between(0, std::max<int64_t>(GetParam().classes, 1) - 1));
    examples.numbers = Draw(static_cast<size_t>(count), 1, seed + 2000);
    return examples;
  }

  struct Step {
    double loss = 0;
    Tables gradients;
    std::vector<int> order;
  };
  Step StepOf(Model& model, const Batch& batch) {
    Step step;
    step.gradients.resize(static_cast<size_t>(tables()));
    const auto loss = model.ForwardBackward(batch, [&](int t, Payload values) {
      step.order.push_back(t);
      step.gradients[static_cast<size_t>(t)] = ToFloats(values);
    });
    EXPECT_TRUE(loss.ok()) << loss.status();
    step.loss = loss.value_or(0);
    return step;
  }
  void ExpectSame(const Step& on_gpu, const Step& on_cpu, double tolerance) {
    EXPECT_NEAR(on_gpu.loss, on_cpu.loss,
                1e-5 * std::max(1.0, std::abs(on_cpu.loss)));
    EXPECT_EQ(on_gpu.order, on_cpu.order);
    for (int t = 0; t < tables(); ++t) {
      EXPECT_LT(RelativeDifference(on_gpu.gradients[t], on_cpu.gradients[t]),
                tolerance)
          << cpu_->tables()[t].name();
    }
  }

  std::unique_ptr<Model> cpu_;
  std::unique_ptr<Model> gpu_;
};

TEST_P(OnGpu, LossAndGradientsAreThoseOfTheCpu) {
  for (const int64_t count : {1, 7, 64}) {
    const Examples examples = DrawExamples(count, 3);
    ExpectSame(StepOf(*gpu_, examples.batch()), StepOf(*cpu_, examples.batch()),
               1e-5);
  }
}

TEST_P(OnGpu, EvaluationIsThatOfTheCpu) {
  const Examples examples = DrawExamples(50, 4);
  const auto on_gpu = gpu_->Evaluate(examples.batch());
  const auto on_cpu = cpu_->Evaluate(examples.batch());
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_NEAR(on_gpu->loss_sum, on_cpu->loss_sum, 1e-4 * on_cpu->loss_sum);
  EXPECT_EQ(on_gpu->correct, on_cpu->correct);
  EXPECT_EQ(on_gpu->examples, 50);
  EXPECT_DOUBLE_EQ(gpu_->Regularizer().value(), cpu_->Regularizer().value());
}

TEST_P(OnGpu, RepeatedStepsGiveTheSameBits) {
  const Examples examples = DrawExamples(32, 5);
  const Step first = StepOf(*gpu_, examples.batch());
  for (int i = 0; i < 5; ++i) {
    const Step again = StepOf(*gpu_, examples.batch());
    EXPECT_EQ(again.loss, first.loss);
    EXPECT_EQ(again.gradients, first.gradients);
  }
}

TEST_P(OnGpu, WhatIsLoadedIsReadBackBitForBit) {
  for (int t = 0; t < tables(); ++t) {
    Floats values = Draw(cpu_->parameter(t).size(), 1, 77);
    values[0] = -0.0f;
    values.back() = std::nanf("3");
    const size_t cut = values.size() / 3;
    const auto load = [&](size_t begin, size_t end) {
      gpu_->Load(
          t, static_cast<int64_t>(begin),
          ToPayload(Floats(values.begin() + begin, values.begin() + end)));
    };
    load(cut, values.size());
    load(0, cut);
    Floats read(values.size());
    ASSERT_TRUE(gpu_->Read(t, absl::MakeSpan(read)).ok());
    EXPECT_EQ(
        std::memcmp(read.data(), values.data(), values.size() * sizeof(float)),
        0);
  }
}

// Each step uses the parameters loaded right before it, though transfer and
// computation run beside each other, and no gradient that is still held
// changes.
TEST_P(OnGpu, StepsWithLoadsBetweenDoNotMixUp) {
  std::vector<Payload> held;
  Tables copies;
  for (uint64_t step = 0; step < 10; ++step) {
    for (int t = 0; t < tables(); ++t)
      LoadBoth(t, Draw(cpu_->parameter(t).size(), 0.1, 100 * step + t));
    const Examples examples = DrawExamples(16, step);
    Step on_gpu;
    on_gpu.gradients.resize(static_cast<size_t>(tables()));
    const auto loss =
        gpu_->ForwardBackward(examples.batch(), [&](int t, Payload values) {
          on_gpu.order.push_back(t);
          on_gpu.gradients[static_cast<size_t>(t)] = ToFloats(values);
          copies.push_back(ToFloats(values));
          held.push_back(std::move(values));
        });
    ASSERT_TRUE(loss.ok()) << loss.status();
    on_gpu.loss = *loss;
    ExpectSame(on_gpu, StepOf(*cpu_, examples.batch()), kWithTies);
  }
  for (size_t i = 0; i < held.size(); ++i)
    EXPECT_EQ(ToFloats(held[i]), copies[i]);
}

TEST_P(OnGpu, RoundedGradientsAreTheRoundedOnes) {
  const Examples examples = DrawExamples(32, 6);
  const Step exact = StepOf(*gpu_, examples.batch());
  for (const auto& [push_type, half_type] :
       {std::pair{config::Sync::BFLOAT16, HalfType::kBfloat16},
        std::pair{config::Sync::FLOAT16, HalfType::kFloat16}}) {
    const std::unique_ptr<Model> rounding =
        Create({.gpu = 0, .push_type = push_type});
    for (int t = 0; t < tables(); ++t) {
      Floats values(cpu_->parameter(t).size());
      ASSERT_TRUE(cpu_->Read(t, absl::MakeSpan(values)).ok());
      rounding->Load(t, 0, ToPayload(values));
    }
    const Step rounded = StepOf(*rounding, examples.batch());
    EXPECT_EQ(rounded.loss, exact.loss);
    for (int t = 0; t < tables(); ++t) {
      Floats want = exact.gradients[t];
      for (float& value : want) {
        const uint16_t half = RoundToHalf(half_type, value);
        ExpandHalf(half_type, reinterpret_cast<const std::byte*>(&half), 1,
                   &value);
      }
      EXPECT_EQ(rounded.gradients[t], want) << cpu_->tables()[t].name();
    }
  }
}

TEST_P(OnGpu, GradientsThatStayOnTheGpuAreTheSame) {
  CudaModel* const model = gpu_->cuda();
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->gpu()->index, 0);
  const Examples examples = DrawExamples(32, 8);
  const Step want = StepOf(*gpu_, examples.batch());
  std::vector<int> order;
  std::vector<float*> on_device(static_cast<size_t>(tables()));
  const auto loss = model->ForwardBackwardOnDevice(
      examples.batch(), [&](int t, float* gradient) {
        order.push_back(t);
        on_device[static_cast<size_t>(t)] = gradient;
      });
  ASSERT_TRUE(loss.ok()) << loss.status();
  EXPECT_EQ(*loss, want.loss);
  EXPECT_EQ(order, want.order);
  for (int t = 0; t < tables(); ++t) {
    Floats gradient(want.gradients[t].size());
    ASSERT_EQ(cudaMemcpyAsync(gradient.data(), on_device[t],
                              gradient.size() * sizeof(float),
                              cudaMemcpyDeviceToHost, model->compute_stream()),
              cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(model->compute_stream()), cudaSuccess);
    EXPECT_EQ(gradient, want.gradients[t]) << cpu_->tables()[t].name();
  }
}

// As an optimizer does: what is put on the compute stream after a load sees the
// load, and Read() and the next load come after it.
TEST_P(OnGpu, WorkOnTheComputeStreamKeepsItsPlaceBetweenLoads) {
  CudaModel* const model = gpu_->cuda();
  for (uint64_t round = 0; round < 5; ++round) {
    for (int t = 0; t < tables(); ++t) {
      const Floats first = Draw(cpu_->parameter(t).size(), 1, round);
      const Floats second = Draw(first.size(), 1, round + 50);
      model->Load(t, 0, ToPayload(first));
      const absl::Span<float> parameter = model->parameter(t);
      // The first half becomes zero, then one element is loaded again.
      const size_t half = first.size() / 2;
      ASSERT_EQ(cudaMemsetAsync(parameter.data(), 0, half * sizeof(float),
                                model->compute_stream()),
                cudaSuccess);
      model->Load(t, 0, ToPayload({second[0]}));
      Floats want = first;
      std::fill_n(want.begin(), half, 0.0f);
      want[0] = second[0];
      Floats read(first.size());
      ASSERT_TRUE(model->Read(t, absl::MakeSpan(read)).ok());
      EXPECT_EQ(read, want);
    }
  }
}

TEST_P(OnGpu, AFloat16ThatIsTooSmallForAGradientIsAnError) {
  const std::unique_ptr<Model> model =
      Create({.gpu = 0, .push_type = config::Sync::FLOAT16});
  Examples examples = DrawExamples(4, 9);
  std::fill(examples.inputs.begin(), examples.inputs.end(), 1e8f);
  examples.labels = {0, 1, 0, 1};  // One of the two is wrong for sure.
  for (int t = 0; t < tables(); ++t)
    model->Load(t, 0, ToPayload(Draw(cpu_->parameter(t).size(), 0.1, t)));
  const auto loss =
      model->ForwardBackward(examples.batch(), [](int, const Payload&) {});
  EXPECT_EQ(loss.status().code(), absl::StatusCode::kInvalidArgument)
      << loss.status();
  EXPECT_NE(std::string(loss.status().message()).find("BFLOAT16"),
            std::string::npos)
      << loss.status();
}

INSTANTIATE_TEST_SUITE_P(
    Models, OnGpu,
    testing::Values(
        Case{"Softmax", "softmax {}", 7, 4, 1e-5},
        Case{"Mlp", "mlp { hidden: 300 hidden: 50 }", 100, 10, 1e-5},
        Case{"Lenet", "lenet {}", 784, 10, 1e-4},
        Case{"LogisticWithPenalty", "logistic { l2: 0.3 }", 80, 2, 1e-5},
        Case{"LinearWithPenalty", "linear { l2: 0.3 }", 80, 0, 1e-5}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace slackline
