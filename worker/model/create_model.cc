#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "worker/model/cuda_model.h"
#include "worker/model/model.h"
#include "worker/model/network.h"

namespace slackline {
namespace {

using at::Tensor;

class CpuModel final : public Model {
 public:
  explicit CpuModel(std::unique_ptr<Network> network)
      : network_(std::move(network)) {}

  absl::Span<const wire::Table> tables() const override {
    return network_->tables();
  }

  absl::Span<float> parameter(int table) override {
    const Tensor& tensor = network_->tensor(table);
    return {tensor.data_ptr<float>(), static_cast<size_t>(tensor.numel())};
  }

  void Load(int table, int64_t first_element, const Payload& values) override {
    const absl::Span<float> all = parameter(table);
    CheckLoad(table, static_cast<int64_t>(all.size()), first_element, values);
    if (!values.empty())
      std::memcpy(all.data() + first_element, values.data(), values.size());
  }

  absl::Status Read(int table, absl::Span<float> out) override {
    const absl::Span<const float> all = parameter(table);
    SL_CHECK(out.size() == all.size(),
             absl::StrCat("read of ", out.size(), " elements of ", all.size()));
    std::memcpy(out.data(), all.data(), all.size() * sizeof(float));
    return absl::OkStatus();
  }

  absl::StatusOr<double> ForwardBackward(const Batch& batch,
                                         const GradientReady& ready) override {
    SL_RETURN_IF_ERROR(network_->Check(batch));
    try {
      const Parameters::GradientSink sink = [&](int table, Tensor gradient) {
        ready(table, Payload::Wrap(gradient.data_ptr<float>(),
                                   gradient.nbytes(), gradient));
      };
      Parameters parameters(network_->tensors(), {.sink = &sink});
      const Tensor labels = Labels(batch);
      const Tensor scores = network_->Scores(Inputs(batch), parameters);
      const Tensor objective = network_->Objective(scores, labels, parameters);
      objective.backward();
      return objective.item<double>();
    } catch (const std::exception& error) {
      return LibTorchError("forward and backward", error);
    }
  }

  absl::StatusOr<Evaluation> Evaluate(const Batch& batch) override {
    SL_RETURN_IF_ERROR(network_->Check(batch));
    try {
      const at::NoGradGuard no_gradients;
      const Tensor labels = Labels(batch);
      Parameters parameters(network_->tensors(), {});
      const Tensor scores = network_->Scores(Inputs(batch), parameters);
      return Evaluation{
          .loss_sum = network_->LossSum(scores, labels).item<double>(),
          .correct = network_->Correct(scores, labels),
          .examples = batch.examples};
    } catch (const std::exception& error) {
      return LibTorchError("evaluation", error);
    }
  }

  absl::StatusOr<double> Regularizer() override {
    return network_->Penalty(parameter(0));
  }

 private:
  Tensor Inputs(const Batch& batch) const {
    return at::from_blob(const_cast<float*>(batch.inputs),
                         {batch.examples, network_->features()}, at::kFloat);
  }
  Tensor Labels(const Batch& batch) const {
    const Network::Labels labels = network_->LabelsOf(batch);
    return at::from_blob(const_cast<void*>(labels.values), {batch.examples},
                         labels.type);
  }

  const std::unique_ptr<Network> network_;
};

}  // namespace

absl::Status CheckModelDevice(const ModelOptions& options) {
  if (options.gpu == ModelOptions::kCpu) return absl::OkStatus();
  return CheckCudaModelDevice(options.gpu);
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const config::Model& config, int64_t features, int64_t classes,
    const ModelOptions& options) {
  SL_RETURN_IF_ERROR(CheckModelDevice(options));
  if (options.gpu != ModelOptions::kCpu)
    return CreateCudaModel(config, features, classes, options);
  SL_ASSIGN_OR_RETURN(std::unique_ptr<Network> network,
                      CreateNetwork(config, features, classes, at::kCPU));
  return std::make_unique<CpuModel>(std::move(network));
}

}  // namespace slackline
