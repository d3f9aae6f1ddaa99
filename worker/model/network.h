// Network: the parameters of a model on a CPU or a GPU, and the mathematics
// over them, device by device the same. Internal to worker/model: shows
// LibTorch.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"
#include "worker/model/model.h"

namespace slackline {

// "`attempt`: LibTorch: ..." with the first line of what LibTorch says.
absl::Status LibTorchError(absl::string_view attempt,
                           const std::exception& error);

// The parameters as one pass sees them. Autograd runs what was built last
// first, so a layer has to take its parameters, weight before bias, just before
// it uses them for the gradients to come in table order.
class Parameters {
 public:
  // Called by backward with each table's gradient, contiguous, once; for a
  // network on a GPU on LibTorch's thread for that GPU.
  using GradientSink = std::function<void(int table, at::Tensor gradient)>;
  struct Options {
    const GradientSink* sink = nullptr;  // Null: no gradients.
    // Called before a table is used for the first time. May be null.
    const std::function<void(int table)>* before_use = nullptr;
  };
  // Both outlive the backward pass.
  Parameters(const std::vector<at::Tensor>& tensors, const Options& options)
      : tensors_(tensors), options_(options), taken_(tensors.size()) {}
  const at::Tensor& Take(int table);

 private:
  const std::vector<at::Tensor>& tensors_;
  const Options options_;
  std::vector<at::Tensor> taken_;
};

// Its functions throw what LibTorch throws.
class Network {
 public:
  virtual ~Network() = default;

  const std::vector<wire::Table>& tables() const { return tables_; }
  // Leaves of the graph, one for each table, contiguous. Out of range: fatal.
  const at::Tensor& tensor(int table) const;
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  int64_t features() const { return features_; }
  virtual absl::Status Check(const Batch& batch) const;

  // What a batch has to predict, and of which type: labels, in most models.
  struct Labels {
    const void* values = nullptr;  // [examples].
    at::ScalarType type = at::kLong;
  };
  virtual Labels LabelsOf(const Batch& batch) const {
    return {.values = batch.labels, .type = at::kLong};
  }

  // [examples, classes] scores before the softmax ([examples] for logistic and
  // linear).
  virtual at::Tensor Scores(const at::Tensor& inputs,
                            Parameters& parameters) const = 0;
  virtual at::Tensor Objective(const at::Tensor& scores,
                               const at::Tensor& labels, Parameters&) const {
    return at::cross_entropy_loss(scores, labels);
  }
  virtual at::Tensor LossSum(const at::Tensor& scores,
                             const at::Tensor& labels) const {
    return at::cross_entropy_loss(scores, labels, {}, at::Reduction::Sum);
  }
  // As Model::Evaluation::correct.
  virtual std::optional<int64_t> Correct(const at::Tensor& scores,
                                         const at::Tensor& labels) const {
    return scores.argmax(1).eq(labels).sum().item<int64_t>();
  }
  // As Model::Regularizer(), given the values of table 0.
  virtual double Penalty(absl::Span<const float>) const { return 0; }

 protected:
  Network(const at::Device& device, int64_t features, int64_t classes)
      : device_(device), features_(features), classes_(classes) {}

  // Adds a parameter that starts uniform in [-bound, bound); zero if bound is
  // 0.
  void AddTable(std::string name, const std::vector<int64_t>& shape,
                double bound);
  // Weight and bias as torch.nn.Linear and Conv2d start them: uniform within
  // 1 / sqrt(inputs of one output).
  void AddLayer(const std::string& name,
                const std::vector<int64_t>& weight_shape);
  static absl::Status CheckPresent(const Batch& batch, const void* labels);

 private:
  const at::Device device_;
  const int64_t features_;
  const int64_t classes_;
  std::vector<wire::Table> tables_;
  std::vector<at::Tensor> tensors_;
};

// Fatal unless `values` are elements of a table of `elements` from
// `first_element` on.
void CheckLoad(int table, int64_t elements, int64_t first_element,
               const Payload& values);

// As CreateModel().
absl::StatusOr<std::unique_ptr<Network>> CreateNetwork(
    const config::Model& config, int64_t features, int64_t classes,
    const at::Device& device);

}  // namespace slackline
