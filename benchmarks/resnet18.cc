#include "benchmarks/resnet18.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>

#include "common/payload.h"
#include "common/status.h"

namespace slackline::bench {
namespace {

using at::Tensor;

// The identity; in the backward pass it gives the gradient to a callback and
// passes nothing on, so that autograd keeps no copy.
class Tap : public torch::autograd::Function<Tap> {
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

}  // namespace

class Resnet18::Network {
 public:
  explicit Network(const Options& options) {
    SL_CHECK(options.batch_size >= 2 && options.batches >= 1, "batches");
    // The shapes come from a pass that makes what it takes.
    at::manual_seed(options.seed);
    building_ = true;
    Forward(at::zeros({2, 3, 32, 32}));
    building_ = false;
    at::manual_seed(options.data_seed);
    for (int i = 0; i < options.batches; ++i) {
      inputs_.push_back(at::randn({options.batch_size, 3, 32, 32}));
      labels_.push_back(at::randint(kClasses, {options.batch_size}, at::kLong));
    }
  }

  std::vector<Tensor>& tensors() { return tensors_; }

  void ForwardBackward(int64_t step, const Model::GradientReady& ready) {
    const size_t batch = static_cast<size_t>(step) % inputs_.size();
    ready_ = &ready;
    const Tensor scores = Forward(inputs_[batch]);
    at::cross_entropy_loss(scores, labels_[batch]).backward();
  }

 private:
  static constexpr int64_t kClasses = 10;

  Tensor Forward(const Tensor& pictures) {
    taken_ = 0;
    Tensor x = Convolution(pictures, 64, 7, 2);
    x = at::max_pool2d(BatchNorm(x).relu(), {3, 3}, {2, 2}, {1, 1});
    for (const int64_t channels : {64, 128, 256, 512}) {
      x = Block(x, channels, channels == 64 ? 1 : 2);
      x = Block(x, channels, 1);
    }
    x = x.mean({2, 3});
    const Tensor weight =
        Take({kClasses, x.size(1)}, 1 / std::sqrt(double(x.size(1))), 0);
    const Tensor bias = Take({kClasses}, 0, 0);
    return at::linear(x, weight, bias);
  }
  Tensor Block(const Tensor& x, int64_t channels, int64_t stride) {
    Tensor y = BatchNorm(Convolution(x, channels, 3, stride)).relu();
    y = BatchNorm(Convolution(y, channels, 3, 1));
    const bool same = x.size(1) == channels && stride == 1;
    return (y + (same ? x : BatchNorm(Convolution(x, channels, 1, stride))))
        .relu();
  }
  Tensor Convolution(const Tensor& x, int64_t channels, int64_t side,
                     int64_t stride) {
    const double deviation =
        std::sqrt(2 / static_cast<double>(channels * side * side));
    const Tensor weight = Take({channels, x.size(1), side, side}, deviation, 0);
    return at::conv2d(x, weight, {}, stride, side / 2);
  }
  Tensor BatchNorm(const Tensor& x) {
    const Tensor weight = Take({x.size(1)}, 0, 1);
    const Tensor bias = Take({x.size(1)}, 0, 0);
    return at::batch_norm(x, weight, bias, {}, {}, true, 0.1, 1e-5, false);
  }
  // The next parameter.
  Tensor Take(const std::vector<int64_t>& shape, double deviation,
              double mean) {
    if (building_) {
      tensors_.push_back(
          (at::randn(shape) * deviation + mean).set_requires_grad(true));
      return tensors_.back();
    }
    const int64_t table = taken_++;
    return Tap::apply(tensors_[static_cast<size_t>(table)], table,
                      reinterpret_cast<int64_t>(ready_));
  }

  std::vector<Tensor> tensors_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> labels_;
  bool building_ = false;
  int64_t taken_ = 0;  // In this pass.
  const Model::GradientReady* ready_ = nullptr;
};

Resnet18::Resnet18(const Options& options)
    : network_(std::make_unique<Network>(options)) {}
Resnet18::~Resnet18() = default;

int Resnet18::tables() const {
  return static_cast<int>(network_->tensors().size());
}

absl::Span<float> Resnet18::parameter(int table) {
  const Tensor& tensor = network_->tensors()[static_cast<size_t>(table)];
  return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

void Resnet18::ForwardBackward(int64_t step,
                               const Model::GradientReady& ready) {
  network_->ForwardBackward(step, ready);
}

}  // namespace slackline::bench
