#include "worker/model/model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/status.h"

namespace slackline {
namespace {

using at::Tensor;

absl::Status LibTorchError(absl::string_view attempt,
                           const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  const absl::string_view what = torch_error != nullptr
                                     ? torch_error->what_without_backtrace()
                                     : error.what();
  return absl::InternalError(
      absl::StrCat(attempt, ": LibTorch: ", what.substr(0, what.find('\n'))));
}

// The identity on a parameter in the forward pass. In the backward pass it
// hands the parameter's gradient to a callback and passes nothing on. A hook on
// the parameter itself would do, but then autograd also stores the gradient in
// the parameter, and copies it to do so as soon as somebody else holds it.
class GradientTap : public torch::autograd::Function<GradientTap> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& parameter, int64_t table,
                        int64_t ready_address) {
    context->saved_data["table"] = table;
    context->saved_data["ready"] = ready_address;
    return parameter.detach();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const Tensor gradient = gradients[0].contiguous();
    const auto* const ready = reinterpret_cast<const Model::GradientReady*>(
        context->saved_data["ready"].toInt());
    (*ready)(
        static_cast<int>(context->saved_data["table"].toInt()),
        Payload::Wrap(gradient.data_ptr<float>(), gradient.nbytes(), gradient));
    return {Tensor(), Tensor(), Tensor()};
  }
};

// The parameters as one pass sees them: tapped if `ready` is given. Autograd
// runs what was built last first, so a layer has to take its parameters, weight
// before bias, just before it uses them for the gradients to come in table
// order.
class Parameters {
 public:
  Parameters(const std::vector<Tensor>& tensors,
             const Model::GradientReady* ready)
      : tensors_(tensors), ready_(ready), taken_(tensors.size()) {}
  const Tensor& Take(int table) {
    Tensor& taken = taken_[static_cast<size_t>(table)];
    if (!taken.defined()) {
      taken = tensors_[static_cast<size_t>(table)];
      if (ready_ != nullptr) {
        taken = GradientTap::apply(taken, int64_t{table},
                                   reinterpret_cast<int64_t>(ready_));
      }
    }
    return taken;
  }

 private:
  const std::vector<Tensor>& tensors_;
  const Model::GradientReady* const ready_;
  std::vector<Tensor> taken_;
};

class TorchModel : public Model {
 public:
  absl::Span<const wire::Table> tables() const override { return tables_; }

  absl::Span<float> parameter(int table) override {
    SL_CHECK(table >= 0 && static_cast<size_t>(table) < tensors_.size(),
             absl::StrCat("table ", table, " of ", tensors_.size()));
    const Tensor& tensor = tensors_[static_cast<size_t>(table)];
    return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
  }

  absl::StatusOr<double> ForwardBackward(const Batch& batch,
                                         const GradientReady& ready) override {
    SL_RETURN_IF_ERROR(Check(batch));
    try {
      Parameters parameters(tensors_, &ready);
      const Tensor labels = Labels(batch);
      const Tensor scores = Scores(Inputs(batch), parameters);
      const Tensor objective = Objective(scores, labels, parameters);
      objective.backward();
      return objective.item<double>();
    } catch (const std::exception& error) {
      return LibTorchError("forward and backward", error);
    }
  }

  absl::StatusOr<Evaluation> Evaluate(const Batch& batch) override {
    SL_RETURN_IF_ERROR(Check(batch));
    try {
      const at::NoGradGuard no_gradients;
      const Tensor labels = Labels(batch);
      Parameters parameters(tensors_, nullptr);
      const Tensor scores = Scores(Inputs(batch), parameters);
      return Evaluation{
          .loss_sum = LossSum(scores, labels).item<double>(),
          .correct = Classes(scores).eq(labels).sum().item<int64_t>(),
          .examples = batch.examples};
    } catch (const std::exception& error) {
      return LibTorchError("evaluation", error);
    }
  }

  double Regularizer() override { return 0; }

 protected:
  TorchModel(int64_t features, int64_t classes)
      : features_(features), classes_(classes) {}

  // Adds a parameter that starts uniform in [-bound, bound); zero if bound is
  // 0.
  void AddTable(std::string name, const std::vector<int64_t>& shape,
                double bound) {
    wire::Table& table = tables_.emplace_back();
    table.set_name(std::move(name));
    for (const int64_t size : shape) table.add_shape(size);
    wire::Initializer& initializer = *table.mutable_initializer();
    if (bound == 0) {
      initializer.set_kind(wire::Initializer::CONSTANT);
    } else {
      initializer.set_kind(wire::Initializer::UNIFORM);
      initializer.set_a(-bound);
      initializer.set_b(bound);
    }
    tensors_.push_back(at::zeros(shape, at::kFloat).set_requires_grad(true));
  }
  // Weight and bias as torch.nn.Linear and Conv2d start them: uniform within
  // 1 / sqrt(inputs of one output).
  void AddLayer(const std::string& name,
                const std::vector<int64_t>& weight_shape) {
    int64_t fan_in = 1;
    for (size_t i = 1; i < weight_shape.size(); ++i) fan_in *= weight_shape[i];
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    AddTable(name + ".weight", weight_shape, bound);
    AddTable(name + ".bias", {weight_shape[0]}, bound);
  }

  static Tensor Linear(const Tensor& inputs, Parameters& parameters,
                       int layer) {
    const Tensor weight = parameters.Take(2 * layer);
    const Tensor bias = parameters.Take(2 * layer + 1);
    return at::linear(inputs, weight, bias);
  }
  static Tensor Convolution(const Tensor& inputs, Parameters& parameters,
                            int layer) {
    const Tensor weight = parameters.Take(2 * layer);
    const Tensor bias = parameters.Take(2 * layer + 1);
    return at::conv2d(inputs, weight, bias);
  }

  // [examples, classes] scores before the softmax ([examples] for logistic).
  virtual Tensor Scores(const Tensor& inputs, Parameters& parameters) const = 0;
  virtual Tensor Objective(const Tensor& scores, const Tensor& labels,
                           Parameters&) const {
    return at::cross_entropy_loss(scores, labels);
  }
  virtual Tensor LossSum(const Tensor& scores, const Tensor& labels) const {
    return at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
  }
  virtual Tensor Classes(const Tensor& scores) const {
    return scores.argmax(1);
  }

 private:
  absl::Status Check(const Batch& batch) const {
    if (batch.examples < 1 || batch.inputs == nullptr ||
        batch.labels == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          "batch: ", batch.examples,
          " examples; at least 1 is required, with inputs and labels"));
    }
    for (int64_t i = 0; i < batch.examples; ++i) {
      if (batch.labels[i] < 0 || batch.labels[i] >= classes_) {
        return absl::InvalidArgumentError(
            absl::StrCat("batch: label ", batch.labels[i], " of example ", i,
                         " is outside [0, ", classes_, ")"));
      }
    }
    return absl::OkStatus();
  }
  Tensor Inputs(const Batch& batch) const {
    return at::from_blob(const_cast<float*>(batch.inputs),
                         {batch.examples, features_}, at::kFloat);
  }
  static Tensor Labels(const Batch& batch) {
    return at::from_blob(const_cast<int64_t*>(batch.labels), {batch.examples},
                         at::kLong);
  }

  const int64_t features_;
  const int64_t classes_;
  std::vector<wire::Table> tables_;
  std::vector<Tensor> tensors_;  // Leaves of the graph, one per table.
};

class Softmax final : public TorchModel {
 public:
  Softmax(int64_t features, int64_t classes) : TorchModel(features, classes) {
    AddTable("softmax.weight", {classes, features}, 0);
    AddTable("softmax.bias", {classes}, 0);
  }

 protected:
  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    return Linear(inputs, parameters, 0);
  }
};

class Mlp final : public TorchModel {
 public:
  Mlp(int64_t features, const std::vector<int64_t>& hidden, int64_t classes)
      : TorchModel(features, classes),
        layers_(static_cast<int>(hidden.size()) + 1) {
    int64_t inputs = features;
    for (int layer = 0; layer < layers_; ++layer) {
      const int64_t outputs =
          layer + 1 == layers_ ? classes : hidden[static_cast<size_t>(layer)];
      AddLayer(absl::StrCat("mlp.", layer), {outputs, inputs});
      inputs = outputs;
    }
  }

 protected:
  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    Tensor values = inputs;
    for (int layer = 0; layer < layers_; ++layer) {
      values = Linear(values, parameters, layer);
      if (layer + 1 < layers_) values = values.relu();
    }
    return values;
  }

 private:
  const int layers_;
};

class Lenet final : public TorchModel {
 public:
  static constexpr int64_t kSide = 28;
  explicit Lenet(int64_t classes) : TorchModel(kSide * kSide, classes) {
    AddLayer("lenet.conv1", {20, 1, 5, 5});
    AddLayer("lenet.conv2", {50, 20, 5, 5});
    AddLayer("lenet.fc1", {500, 50 * 4 * 4});  // 28 -> 24 -> 12 -> 8 -> 4.
    AddLayer("lenet.fc2", {classes, 500});
  }

 protected:
  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    // The channels-last view of a picture with one channel. The layers after it
    // keep to that order, in which pooling is vectorised: a quarter less time.
    Tensor values = inputs.as_strided({inputs.size(0), 1, kSide, kSide},
                                      {kSide * kSide, 1, kSide, 1});
    // Pooling and ReLU commute; this order does a quarter of the ReLU work.
    values = at::max_pool2d(Convolution(values, parameters, 0), {2, 2}).relu();
    values = at::max_pool2d(Convolution(values, parameters, 1), {2, 2}).relu();
    values = Linear(values.flatten(1), parameters, 2).relu();
    return Linear(values, parameters, 3);
  }
};

class Logistic final : public TorchModel {
 public:
  Logistic(int64_t features, double l2) : TorchModel(features, 2), l2_(l2) {
    AddTable("logistic.weight", {1, features}, 0);
    AddTable("logistic.bias", {1}, 0);
  }

  double Regularizer() override {
    double squares = 0;
    for (const float weight : parameter(0))
      squares += static_cast<double>(weight) * weight;
    return l2_ / 2 * squares;
  }

 protected:
  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    return Linear(inputs, parameters, 0).squeeze(1);
  }
  Tensor Objective(const Tensor& scores, const Tensor& labels,
                   Parameters& parameters) const override {
    const Tensor loss =
        at::binary_cross_entropy_with_logits(scores, labels.to(at::kFloat));
    if (l2_ == 0) return loss;
    return loss + parameters.Take(0).square().sum() * (l2_ / 2);
  }
  Tensor LossSum(const Tensor& scores, const Tensor& labels) const override {
    return at::binary_cross_entropy_with_logits(scores, labels.to(at::kFloat),
                                                {}, {}, at::Reduction::Sum);
  }
  Tensor Classes(const Tensor& scores) const override {
    return scores.gt(0).to(at::kLong);
  }

 private:
  const double l2_;
};

// What CreateModel checks before it builds anything.
absl::Status CheckSizes(int64_t features, int64_t classes) {
  if (features < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: the data has ", features, " features, at least 1 is required"));
  }
  if (classes < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: the data has ", classes, " classes, at least 2 are required"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Model>> CreateMlp(const config::Mlp& mlp,
                                                 int64_t features,
                                                 int64_t classes) {
  if (mlp.hidden().empty()) {
    return absl::InvalidArgumentError(
        "model.mlp.hidden: not given, at least one width is required; for a "
        "model without "
        "hidden layers use softmax {}");
  }
  for (int i = 0; i < mlp.hidden_size(); ++i) {
    if (mlp.hidden(i) < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.mlp.hidden: width ", mlp.hidden(i), " of layer ",
                       i, " is too small, at least 1 is required"));
    }
  }
  return std::make_unique<Mlp>(
      features, std::vector<int64_t>(mlp.hidden().begin(), mlp.hidden().end()),
      classes);
}

absl::StatusOr<std::unique_ptr<Model>> CreateLenet(int64_t features,
                                                   int64_t classes) {
  if (features != Lenet::kSide * Lenet::kSide) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.lenet: the data has ", features,
                     " features, 784 (28x28 pictures) are required; "
                     "use mlp {} for other inputs"));
  }
  return std::make_unique<Lenet>(classes);
}

absl::StatusOr<std::unique_ptr<Model>> CreateLogistic(
    const config::Logistic& logistic, int64_t features, int64_t classes) {
  if (classes != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.logistic: the data has ", classes,
                     " classes, exactly 2 are required; "
                     "use softmax {} for more"));
  }
  if (!(logistic.l2() >= 0) || std::isinf(logistic.l2())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.logistic.l2: ", logistic.l2(),
        " is not a penalty, a finite value of at least 0 is required"));
  }
  return std::make_unique<Logistic>(features, logistic.l2());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateModel(const config::Model& config,
                                                   int64_t features,
                                                   int64_t classes) {
  SL_RETURN_IF_ERROR(CheckSizes(features, classes));
  try {
    switch (config.kind_case()) {
      case config::Model::kSoftmax:
        return std::make_unique<Softmax>(features, classes);
      case config::Model::kMlp:
        return CreateMlp(config.mlp(), features, classes);
      case config::Model::kLenet:
        return CreateLenet(features, classes);
      case config::Model::kLogistic:
        return CreateLogistic(config.logistic(), features, classes);
      case config::Model::KIND_NOT_SET:
        break;
    }
  } catch (const std::exception& error) {  // Most likely not enough memory.
    return LibTorchError("model: allocating the parameters", error);
  }
  return absl::InvalidArgumentError(
      "model: no kind is given; add one of softmax {}, mlp { hidden: 512 }, "
      "lenet {}, logistic {}");
}

}  // namespace slackline
