// Goal: the gradients are those of the loss, come out in backward order and
// stay as they were handed out. Method: a naive twin computes each objective in
// double precision, with plain loops; its central differences, at random
// parameters, are the reference.
#include "worker/model/model.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/blas/open_blas.h"
#include "common/rng.h"
#include "common/view/initializer.h"
#include "common/view/shard_map.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "worker/model/compute.h"

namespace slackline::model_test {

using testing::ElementsAre;
using testing::HasSubstr;

config::Model Parse(const std::string& text) {
  config::Model config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config))
      << text;
  return config;
}

// With classes or with numbers to predict.
struct Examples {
  std::vector<float> inputs;
  std::vector<int64_t> labels;
  std::vector<float> numbers;
  int64_t count() const {
    return static_cast<int64_t>(labels.size() + numbers.size());
  }
  Batch Part(int64_t begin, int64_t examples) const {
    const int64_t features = static_cast<int64_t>(inputs.size()) / count();
    return {.examples = examples,
            .inputs = inputs.data() + begin * features,
            .labels = labels.empty() ? nullptr : labels.data() + begin,
            .numbers = numbers.empty() ? nullptr : numbers.data() + begin};
  }
  Batch All() const { return Part(0, count()); }
};

// classes 0: with numbers.
Examples RandomExamples(int64_t count, int64_t features, int64_t classes,
                        uint64_t seed) {
  Rng rng(seed);
  Examples examples;
  for (int64_t i = 0; i < count * features; ++i)
    examples.inputs.push_back(static_cast<float>(rng.Normal()));
  for (int64_t i = 0; i < count; ++i) {
    if (classes > 0) {
      examples.labels.push_back(rng.Between(0, classes - 1));
    } else {
      examples.numbers.push_back(static_cast<float>(rng.Normal()));
    }
  }
  return examples;
}

std::vector<float> Floats(const Payload& payload) {
  std::vector<float> values(payload.size() / sizeof(float));
  std::memcpy(values.data(), payload.data(), payload.size());
  return values;
}

using Doubles = std::vector<double>;

Doubles Relu(Doubles values) {
  for (double& value : values) value = std::max(value, 0.0);
  return values;
}

// weight [outputs, inputs], row-major.
Doubles Linear(const Doubles& weight, const Doubles& bias,
               const Doubles& inputs) {
  Doubles outputs = bias;
  for (size_t o = 0; o < outputs.size(); ++o) {
    for (size_t i = 0; i < inputs.size(); ++i)
      outputs[o] += weight[o * inputs.size() + i] * inputs[i];
  }
  return outputs;
}

// 5x5 convolution of square pictures without a border, then the largest of each
// 2x2 pixels, then ReLU. weight [outputs, channels, 5, 5].
Doubles ConvolvePoolRelu(const Doubles& weight, const Doubles& bias,
                         const Doubles& inputs, size_t channels, size_t side) {
  const size_t half = (side - 4) / 2;
  Doubles outputs;
  for (size_t o = 0; o < bias.size(); ++o) {
    const auto at = [&](size_t y, size_t x) {
      double sum = bias[o];
      for (size_t c = 0; c < channels; ++c) {
        for (size_t k = 0; k < 25; ++k) {
          sum += weight[(o * channels + c) * 25 + k] *
                 inputs[(c * side + y + k / 5) * side + x + k % 5];
        }
      }
      return sum;
    };
    for (size_t i = 0; i < half * half; ++i) {
      const size_t y = i / half * 2;
      const size_t x = i % half * 2;
      outputs.push_back(
          std::max({at(y, x), at(y, x + 1), at(y + 1, x), at(y + 1, x + 1)}));
    }
  }
  return Relu(outputs);
}

// -log of the softmax at `label`.
double CrossEntropy(const Doubles& scores, int64_t label) {
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - scores[label]);
  return std::log(sum);
}

// Loss of example `row`.
double NaiveLoss(const config::Model& config, const std::vector<Doubles>& p,
                 const Doubles& inputs, const Batch& batch, int64_t row) {
  if (config.has_linear()) {
    return std::pow(Linear(p[0], p[1], inputs)[0] - batch.numbers[row], 2) / 2;
  }
  const int64_t label = batch.labels[row];
  switch (config.kind_case()) {
    case config::Model::kMlp: {
      Doubles values = inputs;
      for (size_t t = 0; t + 2 < p.size(); t += 2)
        values = Relu(Linear(p[t], p[t + 1], values));
      return CrossEntropy(Linear(p[p.size() - 2], p[p.size() - 1], values),
                          label);
    }
    case config::Model::kLenet: {
      Doubles values = ConvolvePoolRelu(p[0], p[1], inputs, 1, 28);
      values = ConvolvePoolRelu(p[2], p[3], values, 20, 12);
      values = Relu(Linear(p[4], p[5], values));
      return CrossEntropy(Linear(p[6], p[7], values), label);
    }
    case config::Model::kLogistic: {
      const double score = Linear(p[0], p[1], inputs)[0];
      return std::log1p(std::exp(label == 1 ? -score : score));
    }
    default:
      return CrossEntropy(Linear(p[0], p[1], inputs), label);
  }
}

double NaiveObjective(const config::Model& config,
                      const std::vector<Doubles>& p, const Batch& batch,
                      int64_t features) {
  double sum = 0;
  for (int64_t i = 0; i < batch.examples; ++i) {
    const float* const inputs = batch.inputs + i * features;
    sum += NaiveLoss(config, p, Doubles(inputs, inputs + features), batch, i);
  }
  const double l2 =
      config.has_linear() ? config.linear().l2() : config.logistic().l2();
  double penalty = 0;
  for (const double weight : p[0]) penalty += l2 / 2 * weight * weight;
  return sum / static_cast<double>(batch.examples) + penalty;
}

using Gradients = std::vector<std::vector<float>>;  // By table.

struct Case {
  std::string name;
  std::string config;
  int64_t features;
  int64_t classes;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class EveryModel : public testing::TestWithParam<Case> {
 protected:
  // Random parameters everywhere, also where the initializer gives zeros, so
  // that nothing is right by symmetry.
  void SetUp() override {
    ASSERT_TRUE(SetComputeThreads(1).ok());
    auto model = CreateModel(Parse(GetParam().config), GetParam().features,
                             GetParam().classes);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    Rng rng(7);
    for (int t = 0; t < tables(); ++t) {
      const double scale = std::min(
          0.5,
          std::sqrt(2.0 / static_cast<double>(model_->parameter(t).size())));
      for (float& value : model_->parameter(t))
        value = static_cast<float>(std::max(scale, 0.05) * rng.Normal());
    }
  }
  int tables() const { return static_cast<int>(model_->tables().size()); }
  Examples Draw(int64_t count, uint64_t seed = 3) const {
    return RandomExamples(count, GetParam().features, GetParam().classes, seed);
  }

  double Loss(const Batch& batch) {
    const auto evaluation = model_->Evaluate(batch);
    EXPECT_TRUE(evaluation.ok()) << evaluation.status();
    return evaluation->loss_sum / static_cast<double>(batch.examples) +
           model_->Regularizer().value();
  }
  Gradients GradientsOf(const Batch& batch, double* loss = nullptr) {
    Gradients gradients(static_cast<size_t>(tables()));
    const auto result =
        model_->ForwardBackward(batch, [&](int table, Payload gradient) {
          gradients.at(table) = Floats(gradient);
        });
    EXPECT_TRUE(result.ok()) << result.status();
    if (loss != nullptr) *loss = *result;
    return gradients;
  }

  std::unique_ptr<Model> model_;
};

TEST_P(EveryModel, TablesAreNamedAndShapedLikeTheirParameters) {
  std::map<std::string, int> seen;
  for (int t = 0; t < tables(); ++t) {
    const wire::Table& table = model_->tables()[t];
    EXPECT_EQ(seen[table.name()]++, 0) << table.name();
    EXPECT_EQ(TableElements(table),
              static_cast<int64_t>(model_->parameter(t).size()));
    EXPECT_NE(table.initializer().kind(), wire::Initializer::KIND_UNSPECIFIED);
    EXPECT_EQ(table.shard_elements(), 0);
  }
}

TEST_P(EveryModel, LossIsThatOfEvaluationPlusThePenalty) {
  const Examples examples = Draw(5);
  double loss = 0;
  GradientsOf(examples.All(), &loss);
  EXPECT_NEAR(loss, Loss(examples.All()), 1e-5 * std::max(1.0, loss));
}

// Along the gradient itself, where it is largest and where chance picks: an
// element in the wrong place would show.
TEST_P(EveryModel, GradientsAgreeWithFiniteDifferencesOfTheTwin) {
  const config::Model config = Parse(GetParam().config);
  const Examples examples = Draw(3);
  double loss = 0;
  const Gradients gradients = GradientsOf(examples.All(), &loss);
  std::vector<Doubles> parameters;
  for (int t = 0; t < tables(); ++t) {
    parameters.emplace_back(model_->parameter(t).begin(),
                            model_->parameter(t).end());
  }
  const auto objective = [&] {
    return NaiveObjective(config, parameters, examples.All(),
                          GetParam().features);
  };
  EXPECT_NEAR(loss, objective(), 1e-5 * std::max(1.0, loss));

  Rng rng(11);
  for (int t = 0; t < tables(); ++t) {
    SCOPED_TRACE(model_->tables()[t].name());
    const std::vector<float>& gradient = gradients[t];
    const Doubles saved = parameters[t];
    ASSERT_EQ(gradient.size(), saved.size());
    const auto slope =
        [&](auto direction) {  // direction(i): change of element i.
          constexpr double kStep = 1e-6;
          double ends[2] = {0, 0};
          for (const int side : {0, 1}) {
            for (size_t i = 0; i < saved.size(); ++i) {
              parameters[t][i] =
                  saved[i] + (side == 0 ? -kStep : kStep) * direction(i);
            }
            ends[side] = objective();
          }
          parameters[t] = saved;
          return (ends[1] - ends[0]) / (2 * kStep);
        };

    double norm = 0;
    for (const float g : gradient) norm += static_cast<double>(g) * g;
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 1e-4);
    EXPECT_NEAR(slope([&](size_t i) { return gradient[i] / norm; }), norm,
                1e-4 * norm);

    const auto largest = std::max_element(
        gradient.begin(), gradient.end(),
        [](float a, float b) { return std::abs(a) < std::abs(b); });
    std::vector<size_t> chosen = {
        static_cast<size_t>(largest - gradient.begin())};
    for (int i = 0; i < 4; ++i) chosen.push_back(rng.Below(gradient.size()));
    for (const size_t at : chosen) {
      EXPECT_NEAR(slope([at](size_t i) { return i == at ? 1.0 : 0.0; }),
                  gradient[at], 1e-4 * std::abs(*largest))
          << "element " << at;
    }
  }
}

TEST_P(EveryModel, EachTableIsReadyOnceLastTableFirst) {
  const Examples examples = Draw(4);
  std::vector<int> want;
  for (int t = tables() - 1; t >= 0; --t) want.push_back(t);
  for (int step = 0; step < 3; ++step) {
    std::vector<int> order;
    ASSERT_TRUE(model_
                    ->ForwardBackward(examples.All(),
                                      [&](int table, const Payload&) {
                                        order.push_back(table);
                                      })
                    .ok());
    EXPECT_EQ(order, want);
  }
}

TEST_P(EveryModel, GradientsOfOneStepOutliveTheNext) {
  const Examples examples = Draw(8);
  std::vector<Payload> held(static_cast<size_t>(tables()));
  ASSERT_TRUE(model_
                  ->ForwardBackward(examples.Part(0, 4),
                                    [&](int table, Payload gradient) {
                                      held[table] = std::move(gradient);
                                    })
                  .ok());
  Gradients copies;
  for (const Payload& payload : held) copies.push_back(Floats(payload));
  const Gradients next = GradientsOf(examples.Part(4, 4));
  for (int t = 0; t < tables(); ++t) {
    EXPECT_EQ(Floats(held[t]), copies[t]);
    EXPECT_NE(copies[t], next[t]) << "the next step has gradients of its own";
  }
}

// What bulk-synchronous training relies on: W workers' mean is the gradient of
// the W-fold batch, to rounding.
TEST_P(EveryModel, MeanOfFourGradientsIsTheGradientOfTheFourfoldBatch) {
  const Examples examples = Draw(12);
  const Gradients whole = GradientsOf(examples.All());
  std::vector<Gradients> parts;
  for (int part = 0; part < 4; ++part)
    parts.push_back(GradientsOf(examples.Part(3 * part, 3)));
  for (int t = 0; t < tables(); ++t) {
    double difference = 0;
    double size = 0;
    for (size_t i = 0; i < whole[t].size(); ++i) {
      double mean = 0;
      for (const Gradients& part : parts) mean += part[t][i] / 4.0;
      difference += (mean - whole[t][i]) * (mean - whole[t][i]);
      size += static_cast<double>(whole[t][i]) * whole[t][i];
    }
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(size))
        << model_->tables()[t].name();
  }
}

TEST_P(EveryModel, RepeatedStepsGiveTheSameBits) {
  const Examples examples = Draw(4);
  EXPECT_EQ(GradientsOf(examples.All()), GradientsOf(examples.All()));
}

TEST_P(EveryModel, PiecesLoadedInAnyOrderAreReadBack) {
  Rng rng(13);
  for (int t = 0; t < tables(); ++t) {
    const size_t size = model_->parameter(t).size();
    std::vector<float> values(size);
    for (float& value : values) value = static_cast<float>(rng.Normal());
    const size_t cut = size / 3;
    const auto load = [&](size_t begin, size_t end) {
      model_->Load(
          t, static_cast<int64_t>(begin),
          Payload::Copy(values.data() + begin, (end - begin) * sizeof(float)));
    };
    load(cut, size);
    load(0, cut);
    std::vector<float> read(size);
    ASSERT_TRUE(model_->Read(t, absl::MakeSpan(read)).ok());
    EXPECT_EQ(read, values);
    EXPECT_EQ(std::vector<float>(model_->parameter(t).begin(),
                                 model_->parameter(t).end()),
              values);
  }
}

TEST_P(EveryModel, EvaluationSumsOverExamples) {
  const Examples examples = Draw(6);
  Model::Evaluation sum;
  for (int i = 0; i < 6; ++i) {
    const auto one = model_->Evaluate(examples.Part(i, 1));
    ASSERT_TRUE(one.ok()) << one.status();
    EXPECT_EQ(one->examples, 1);
    sum.loss_sum += one->loss_sum;
    if (one->correct.has_value())
      sum.correct = sum.correct.value_or(0) + *one->correct;
  }
  const auto all = model_->Evaluate(examples.All());
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->examples, 6);
  EXPECT_EQ(all->correct, sum.correct);
  EXPECT_EQ(all->correct.has_value(), GetParam().classes > 0);
  EXPECT_NEAR(all->loss_sum, sum.loss_sum, 1e-4);
}

TEST_P(EveryModel, BatchThatDoesNotFitIsAnError) {
  Examples examples = Draw(2);
  const auto ignore = [](int, const Payload&) {};
  EXPECT_EQ(model_->ForwardBackward({}, ignore).status().code(),
            absl::StatusCode::kInvalidArgument);
  // The other kind of labels.
  Examples others = examples;
  others.labels.assign(GetParam().classes > 0 ? 0 : 2, 0);
  others.numbers.assign(GetParam().classes > 0 ? 2 : 0, 0);
  EXPECT_EQ(model_->ForwardBackward(others.All(), ignore).status().code(),
            absl::StatusCode::kInvalidArgument);
  if (GetParam().classes == 0) return;
  examples.labels[1] = GetParam().classes;
  EXPECT_THAT(
      std::string(
          model_->ForwardBackward(examples.All(), ignore).status().message()),
      HasSubstr("of example 1 is outside [0, "));
  EXPECT_EQ(model_->Evaluate(examples.All()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(
    Models, EveryModel,
    testing::Values(Case{"Softmax", "softmax {}", 7, 4},
                    Case{"Mlp", "mlp { hidden: 9 hidden: 5 }", 6, 3},
                    Case{"Lenet", "lenet {}", 784, 10},
                    Case{"Logistic", "logistic {}", 8, 2},
                    Case{"LogisticWithPenalty", "logistic { l2: 0.3 }", 8, 2},
                    Case{"Linear", "linear {}", 8, 0},
                    Case{"LinearWithPenalty", "linear { l2: 0.3 }", 8, 0}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

// Two classes, one input; the score of class c is weight c times the input.
TEST(Softmax, EvaluationCountsWhatIsMostLikely) {
  auto model = CreateModel(Parse("softmax {}"), 1, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  (*model)->parameter(0)[1] = 1;
  const std::vector<float> inputs = {2, -2, 3};
  const std::vector<int64_t> labels = {1, 1, 1};
  const auto evaluation = (*model)->Evaluate({3, inputs.data(), labels.data()});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_EQ(evaluation->correct, 2);
  EXPECT_NEAR(evaluation->loss_sum,
              std::log1p(std::exp(-2)) + std::log1p(std::exp(2)) +
                  std::log1p(std::exp(-3)),
              1e-5);
}

TEST(Logistic, PenaltyLeavesTheBiasAlone) {
  auto model = CreateModel(Parse("logistic { l2: 0.5 }"), 2, 2);
  ASSERT_TRUE(model.ok()) << model.status();
  (*model)->parameter(0)[0] = 3;
  (*model)->parameter(0)[1] = -1;
  (*model)->parameter(1)[0] = 100;
  EXPECT_DOUBLE_EQ((*model)->Regularizer().value(), 0.25 * 10);
}

// Errors 2 - 1 and -3 - 1, and a penalty on the weight alone.
TEST(Linear, LossIsHalfTheSquareOfTheError) {
  auto model = CreateModel(Parse("linear { l2: 0.5 }"), 1, 0);
  ASSERT_TRUE(model.ok()) << model.status();
  (*model)->parameter(0)[0] = 2;
  (*model)->parameter(1)[0] = 1;
  const std::vector<float> inputs = {0.5f, -2};
  const std::vector<float> numbers = {1, 1};
  const auto evaluation = (*model)->Evaluate(
      {.examples = 2, .inputs = inputs.data(), .numbers = numbers.data()});
  ASSERT_TRUE(evaluation.ok()) << evaluation.status();
  EXPECT_DOUBLE_EQ(evaluation->loss_sum, 0.5 * (1 * 1 + 4 * 4));
  EXPECT_FALSE(evaluation->correct.has_value());
  EXPECT_DOUBLE_EQ((*model)->Regularizer().value(), 0.25 * 4);
}

TEST(Lenet, HasTheShapesOfItsDescription) {
  auto model = CreateModel(Parse("lenet {}"), 784, 10);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<std::string> tables;
  for (const wire::Table& table : (*model)->tables()) {
    tables.push_back(table.name());
    for (const int64_t size : table.shape()) {
      absl::StrAppend(&tables.back(), " ", size);
    }
  }
  EXPECT_THAT(tables,
              ElementsAre("lenet.conv1.weight 20 1 5 5", "lenet.conv1.bias 20",
                          "lenet.conv2.weight 50 20 5 5", "lenet.conv2.bias 50",
                          "lenet.fc1.weight 500 800", "lenet.fc1.bias 500",
                          "lenet.fc2.weight 10 500", "lenet.fc2.bias 10"));
}

// Weight and bias within 1 / sqrt(fan-in), as torch.nn.Linear starts them.
TEST(Mlp, InitializersFollowTheFanIn) {
  auto model = CreateModel(Parse("mlp { hidden: 25 }"), 16, 3);
  ASSERT_TRUE(model.ok()) << model.status();
  std::vector<double> bounds;
  for (const wire::Table& table : (*model)->tables()) {
    EXPECT_EQ(table.initializer().kind(), wire::Initializer::UNIFORM);
    EXPECT_EQ(table.initializer().a(), -table.initializer().b());
    bounds.push_back(table.initializer().b());
  }
  EXPECT_THAT(bounds, ElementsAre(0.25, 0.25, 0.2, 0.2));
}

TEST(CreateModel, ImpossibleConfigsNameFieldValueAndBound) {
  const auto error = [](const std::string& text, int64_t features,
                        int64_t classes) {
    const auto model = CreateModel(Parse(text), features, classes);
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument)
        << text;
    return std::string(model.status().message());
  };
  EXPECT_THAT(error("", 4, 2), HasSubstr("model: is missing"));
  EXPECT_THAT(error("mlp {}", 4, 2), HasSubstr("model.mlp.hidden: is missing"));
  EXPECT_THAT(error("mlp { hidden: 8 hidden: 0 }", 4, 2),
              HasSubstr("model.mlp.hidden[1]: value is 0"));
  EXPECT_THAT(error("lenet {}", 123, 10), HasSubstr("123 features, 784"));
  EXPECT_THAT(error("logistic {}", 4, 10), HasSubstr("10 classes, exactly 2"));
  EXPECT_THAT(error("logistic { l2: -1 }", 4, 2),
              HasSubstr("model.logistic.l2: value is -1"));
  EXPECT_THAT(error("linear { l2: -1 }", 4, 0),
              HasSubstr("model.linear.l2: value is -1"));
  EXPECT_THAT(error("softmax {}", 0, 2), HasSubstr("0 features, at least 1"));
  EXPECT_THAT(error("softmax {}", 4, 1), HasSubstr("1 classes, at least 2"));
}

TEST(CreateModel, GpuThatIsNotThereIsRefusedWithTheWayOut) {
  for (const int gpu : {1000, -2}) {
    const auto model = CreateModel(Parse("softmax {}"), 4, 2, {.gpu = gpu});
    EXPECT_EQ(model.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(model.status().message()),
                HasSubstr(absl::StrCat("worker device CUDA, gpu ", gpu, ": ")));
    EXPECT_EQ(CheckModelDevice({.gpu = gpu}), model.status());
  }
  EXPECT_TRUE(CheckModelDevice({}).ok());
}

TEST(CreateModel, ErrorOfLibTorchComesBackAsStatus) {
  const auto model =
      CreateModel(Parse("softmax {}"), int64_t{1} << 61, 4);  // 2^65 bytes.
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(model.status().message()),
              HasSubstr("allocating the parameters: LibTorch: "));
}

TEST(ComputeThreads, CountOutOfRangeIsRefused) {
  EXPECT_THAT(std::string(SetComputeThreads(0).message()),
              HasSubstr("compute threads: 0 is outside [1, 1024]"));
  EXPECT_TRUE(SetComputeThreads(1).ok());
}

TEST(LoadedBlas, NamesTheLibrary) { EXPECT_FALSE(LoadedBlas().name.empty()); }

// An OpenBLAS that took the kernels without AVX, as it does on a processor that
// it does not know, computes with those of Haswell then.
TEST(OpenBlasKernels, AreChosenAgainWhereTheyAreForOlderProcessors) {
  const auto function = [](const char* name) {
    return dlsym(RTLD_DEFAULT, name);
  };
  const auto name =
      reinterpret_cast<const char* (*)()>(function("openblas_get_corename"));
  const auto forget =
      reinterpret_cast<void (*)()>(function("gotoblas_dynamic_quit"));
  const auto choose =
      reinterpret_cast<void (*)()>(function("gotoblas_dynamic_init"));
  if (name == nullptr || forget == nullptr || choose == nullptr)
    GTEST_SKIP() << "no OpenBLAS that has a choice";
  const auto take = [&](const char* core) {
    setenv("OPENBLAS_CORETYPE", core, 1);
    forget();
    choose();
  };
  take("Prescott");
  ASSERT_STREQ(name(), "Prescott");
  EXPECT_FALSE(ChooseOpenBlasKernels().changed) << "it was the user's choice";
  EXPECT_STREQ(name(), "Prescott");
  unsetenv("OPENBLAS_CORETYPE");
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
    GTEST_SKIP() << "a processor without AVX2";
  // Small whole numbers: the same in every order of addition.
  const auto product = [&] {
    using Sgemm =
        void (*)(const char*, const char*, const int*, const int*, const int*,
                 const float*, const float*, const int*, const float*,
                 const int*, const float*, float*, const int*);
    constexpr int kSize = 37;
    std::vector<float> values(kSize * kSize);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i % 7);
    std::vector<float> result(values.size());
    const float one = 1;
    const float zero = 0;
    reinterpret_cast<Sgemm>(function("sgemm_"))(
        "N", "T", &kSize, &kSize, &kSize, &one, values.data(), &kSize,
        values.data(), &kSize, &zero, result.data(), &kSize);
    return result;
  };
  const std::vector<float> before = product();
  {
    // Somebody else computes.
    std::atomic<bool> ends = false;
    std::thread other([&ends] {
      while (!ends) {
      }
    });
    const OpenBlasKernels kernels = ChooseOpenBlasKernels();
    ends = true;
    other.join();
    EXPECT_FALSE(kernels.changed);
    EXPECT_THAT(kernels.sentence, HasSubstr("OPENBLAS_CORETYPE=Haswell"));
    EXPECT_STREQ(name(), "Prescott");
  }
  const OpenBlasKernels kernels = ChooseOpenBlasKernels();
  EXPECT_TRUE(kernels.changed);
  EXPECT_THAT(kernels.sentence,
              HasSubstr("kernels for Haswell in place of Prescott"));
  EXPECT_STREQ(name(), "Haswell");
  EXPECT_EQ(product(), before);
  EXPECT_EQ(ChooseOpenBlasKernels().sentence, "");
  // A processor that OpenBLAS knows is left alone.
  take("Zen");
  unsetenv("OPENBLAS_CORETYPE");
  EXPECT_EQ(ChooseOpenBlasKernels().sentence, "");
}

}  // namespace slackline::model_test
