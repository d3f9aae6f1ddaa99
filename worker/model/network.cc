#include "worker/model/network.h"

#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/model/model_config.h"

namespace slackline {
namespace {

using at::Tensor;

// The identity on a parameter in the forward pass. In the backward pass it
// hands the parameter's gradient to a callback and passes nothing on. A hook on
// the parameter itself would do, but then autograd also stores the gradient in
// the parameter, and copies it to do so as soon as somebody else holds it.
class GradientTap : public torch::autograd::Function<GradientTap> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& parameter, int64_t table,
                        int64_t sink_address) {
    context->saved_data["table"] = table;
    context->saved_data["sink"] = sink_address;
    return parameter.detach();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list gradients) {
    const auto* const sink = reinterpret_cast<const Parameters::GradientSink*>(
        context->saved_data["sink"].toInt());
    (*sink)(static_cast<int>(context->saved_data["table"].toInt()),
            gradients[0].contiguous());
    return {Tensor(), Tensor(), Tensor()};
  }
};

Tensor Linear(const Tensor& inputs, Parameters& parameters, int layer) {
  const Tensor weight = parameters.Take(2 * layer);
  const Tensor bias = parameters.Take(2 * layer + 1);
  return at::linear(inputs, weight, bias);
}
Tensor Convolution(const Tensor& inputs, Parameters& parameters, int layer) {
  const Tensor weight = parameters.Take(2 * layer);
  const Tensor bias = parameters.Take(2 * layer + 1);
  return at::conv2d(inputs, weight, bias);
}

class Softmax final : public Network {
 public:
  Softmax(const at::Device& device, int64_t features, int64_t classes)
      : Network(device, features, classes) {
    AddTable("softmax.weight", {classes, features}, 0);
    AddTable("softmax.bias", {classes}, 0);
  }

  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    return Linear(inputs, parameters, 0);
  }
};

class Mlp final : public Network {
 public:
  Mlp(const at::Device& device, int64_t features,
      const std::vector<int64_t>& hidden, int64_t classes)
      : Network(device, features, classes),
        layers_(static_cast<int>(hidden.size()) + 1) {
    int64_t inputs = features;
    for (int layer = 0; layer < layers_; ++layer) {
      const int64_t outputs =
          layer + 1 == layers_ ? classes : hidden[static_cast<size_t>(layer)];
      AddLayer(absl::StrCat("mlp.", layer), {outputs, inputs});
      inputs = outputs;
    }
  }

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

class Lenet final : public Network {
 public:
  static constexpr int64_t kSide = kLenetSide;
  Lenet(const at::Device& device, int64_t classes)
      : Network(device, kSide * kSide, classes) {
    AddLayer("lenet.conv1", {20, 1, 5, 5});
    AddLayer("lenet.conv2", {50, 20, 5, 5});
    AddLayer("lenet.fc1", {500, 50 * 4 * 4});  // 28 -> 24 -> 12 -> 8 -> 4.
    AddLayer("lenet.fc2", {classes, 500});
  }

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

// One linear layer with one output, and a penalty on its weights.
class OneOutput : public Network {
 public:
  double Penalty(absl::Span<const float> weights) const override {
    double squares = 0;
    for (const float weight : weights)
      squares += static_cast<double>(weight) * weight;
    return l2_ / 2 * squares;
  }
  Tensor Scores(const Tensor& inputs, Parameters& parameters) const override {
    return Linear(inputs, parameters, 0).squeeze(1);
  }
  Tensor Objective(const Tensor& scores, const Tensor& labels,
                   Parameters& parameters) const override {
    const Tensor loss = Loss(scores, labels, at::Reduction::Mean);
    if (l2_ == 0) return loss;
    return loss + parameters.Take(0).square().sum() * (l2_ / 2);
  }
  Tensor LossSum(const Tensor& scores, const Tensor& labels) const override {
    return Loss(scores, labels, at::Reduction::Sum);
  }

 protected:
  OneOutput(const at::Device& device, absl::string_view name, int64_t features,
            int64_t classes, double l2)
      : Network(device, features, classes), l2_(l2) {
    AddTable(absl::StrCat(name, ".weight"), {1, features}, 0);
    AddTable(absl::StrCat(name, ".bias"), {1}, 0);
  }
  virtual Tensor Loss(const Tensor& scores, const Tensor& labels,
                      at::Reduction::Reduction reduction) const = 0;

 private:
  const double l2_;
};

class Logistic final : public OneOutput {
 public:
  Logistic(const at::Device& device, int64_t features, double l2)
      : OneOutput(device, "logistic", features, /*classes=*/2, l2) {}

  std::optional<int64_t> Correct(const Tensor& scores,
                                 const Tensor& labels) const override {
    return scores.gt(0).to(at::kLong).eq(labels).sum().item<int64_t>();
  }

 private:
  Tensor Loss(const Tensor& scores, const Tensor& labels,
              at::Reduction::Reduction reduction) const override {
    return at::binary_cross_entropy_with_logits(scores, labels.to(at::kFloat),
                                                {}, {}, reduction);
  }
};

class LinearRegression final : public OneOutput {
 public:
  LinearRegression(const at::Device& device, int64_t features, double l2)
      : OneOutput(device, "linear", features, /*classes=*/0, l2) {}

  absl::Status Check(const Batch& batch) const override {
    return CheckPresent(batch, batch.numbers);
  }
  Labels LabelsOf(const Batch& batch) const override {
    return {.values = batch.numbers, .type = at::kFloat};
  }
  std::optional<int64_t> Correct(const Tensor&, const Tensor&) const override {
    return std::nullopt;
  }

 private:
  Tensor Loss(const Tensor& scores, const Tensor& labels,
              at::Reduction::Reduction reduction) const override {
    return at::mse_loss(scores, labels, reduction) / 2;
  }
};

// What CreateModel checks before it builds anything.
absl::Status CheckSizes(const config::Model& config, int64_t features,
                        int64_t classes) {
  if (features < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: the data has ", features, " features, at least 1 is required"));
  }
  if (classes < 2 && !config.has_linear()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model: the data has ", classes, " classes, at least 2 are required"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Network>> CreateLenet(const at::Device& device,
                                                     int64_t features,
                                                     int64_t classes) {
  if (features != Lenet::kSide * Lenet::kSide) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.lenet: the data has ", features,
                     " features, 784 (28x28 pictures) are required; "
                     "use mlp {} for other inputs"));
  }
  return std::make_unique<Lenet>(device, classes);
}

absl::StatusOr<std::unique_ptr<Network>> CreateLogistic(
    const config::Logistic& logistic, const at::Device& device,
    int64_t features, int64_t classes) {
  if (classes != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.logistic: the data has ", classes,
                     " classes, exactly 2 are required; "
                     "use softmax {} for more"));
  }
  return std::make_unique<Logistic>(device, features, logistic.l2());
}

}  // namespace

absl::Status LibTorchError(absl::string_view attempt,
                           const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  const absl::string_view what = torch_error != nullptr
                                     ? torch_error->what_without_backtrace()
                                     : error.what();
  return absl::InternalError(
      absl::StrCat(attempt, ": LibTorch: ", what.substr(0, what.find('\n'))));
}

const Tensor& Parameters::Take(int table) {
  Tensor& taken = taken_[static_cast<size_t>(table)];
  if (!taken.defined()) {
    if (options_.before_use != nullptr) (*options_.before_use)(table);
    taken = tensors_[static_cast<size_t>(table)];
    if (options_.sink != nullptr) {
      taken = GradientTap::apply(taken, int64_t{table},
                                 reinterpret_cast<int64_t>(options_.sink));
    }
  }
  return taken;
}

const Tensor& Network::tensor(int table) const {
  SL_CHECK(table >= 0 && static_cast<size_t>(table) < tensors_.size(),
           absl::StrCat("table ", table, " of ", tensors_.size()));
  return tensors_[static_cast<size_t>(table)];
}

void CheckLoad(int table, int64_t elements, int64_t first_element,
               const Payload& values) {
  const int64_t count = static_cast<int64_t>(values.size() / sizeof(float));
  SL_CHECK(
      values.size() % sizeof(float) == 0 && first_element >= 0 &&
          first_element <= elements && count <= elements - first_element,
      absl::StrCat("table ", table, ": ", values.size(), " bytes from element ",
                   first_element, " of ", elements));
}

absl::Status Network::CheckPresent(const Batch& batch, const void* labels) {
  if (batch.examples >= 1 && batch.inputs != nullptr && labels != nullptr)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "batch: ", batch.examples,
      " examples; at least 1 is required, with inputs and labels"));
}

absl::Status Network::Check(const Batch& batch) const {
  SL_RETURN_IF_ERROR(CheckPresent(batch, batch.labels));
  for (int64_t i = 0; i < batch.examples; ++i) {
    if (batch.labels[i] < 0 || batch.labels[i] >= classes_) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: label ", batch.labels[i], " of example ", i,
                       " is outside [0, ", classes_, ")"));
    }
  }
  return absl::OkStatus();
}

void Network::AddTable(std::string name, const std::vector<int64_t>& shape,
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
  tensors_.push_back(
      at::zeros(shape, at::TensorOptions(at::kFloat).device(device_))
          .set_requires_grad(true));
}
void Network::AddLayer(const std::string& name,
                       const std::vector<int64_t>& weight_shape) {
  int64_t fan_in = 1;
  for (size_t i = 1; i < weight_shape.size(); ++i) fan_in *= weight_shape[i];
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  AddTable(name + ".weight", weight_shape, bound);
  AddTable(name + ".bias", {weight_shape[0]}, bound);
}

absl::StatusOr<std::unique_ptr<Network>> CreateNetwork(
    const config::Model& config, int64_t features, int64_t classes,
    const at::Device& device) {
  const ConfigProblems problems;
  CheckModel(config, problems.In("model"));
  SL_RETURN_IF_ERROR(problems.ToStatus());
  SL_RETURN_IF_ERROR(CheckSizes(config, features, classes));
  try {
    switch (config.kind_case()) {
      case config::Model::kSoftmax:
        return std::make_unique<Softmax>(device, features, classes);
      case config::Model::kMlp:
        return std::make_unique<Mlp>(
            device, features,
            std::vector<int64_t>(config.mlp().hidden().begin(),
                                 config.mlp().hidden().end()),
            classes);
      case config::Model::kLenet:
        return CreateLenet(device, features, classes);
      case config::Model::kLogistic:
        return CreateLogistic(config.logistic(), device, features, classes);
      case config::Model::kLinear:
        return std::make_unique<LinearRegression>(device, features,
                                                  config.linear().l2());
      case config::Model::KIND_NOT_SET:
        break;
    }
  } catch (const std::exception& error) {  // Most likely not enough memory.
    return LibTorchError("model: allocating the parameters", error);
  }
  SL_CHECK(false, "CheckModel() refuses a model without a kind");
}

}  // namespace slackline
