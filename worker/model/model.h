// Models: parameters by table, the gradients of a minibatch, evaluation. The
// numerical work is LibTorch's, which this header does not show.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "proto/wire.pb.h"

namespace slackline {

// A minibatch. The memory is the caller's and stays unchanged during the call.
struct Batch {
  int64_t examples = 0;             // At least 1.
  const float* inputs = nullptr;    // [examples, features], row-major.
  const int64_t* labels = nullptr;  // [examples], each in [0, classes).
};

// Thread-compatible; one trainer thread is its only caller. No call throws:
// what fails inside LibTorch comes back as Internal with LibTorch's own words,
// and a batch that does not fit the model as InvalidArgument.
class Model {
 public:
  virtual ~Model() = default;

  // One for each parameter, first layer first: name, shape and initializer; the
  // shard fields are not set. Valid and unchanged as long as the model.
  virtual absl::Span<const wire::Table> tables() const = 0;

  // The parameter's own memory, in the row-major order of its shape; zeros at
  // first. What is written here counts from the next call on. Stays at one
  // address as long as the model.
  virtual absl::Span<float> parameter(int table) = 0;

  // Called once for each table as soon as its gradient is complete, last table
  // first, on the thread of ForwardBackward() and while the layers before it
  // are still computing. The payload (float32, the order of parameter()) owns
  // the gradient and nobody writes to it any more.
  using GradientReady = std::function<void(int table, Payload gradient)>;

  // The objective over the batch (mean loss plus Regularizer()) and its
  // gradient at the present parameters. After an error some gradients may have
  // been handed out.
  virtual absl::StatusOr<double> ForwardBackward(
      const Batch& batch, const GradientReady& ready) = 0;

  struct Evaluation {
    double loss_sum = 0;  // Sum over the examples, without Regularizer().
    int64_t correct = 0;  // Examples whose most likely class is the label.
    int64_t examples = 0;
  };
  virtual absl::StatusOr<Evaluation> Evaluate(const Batch& batch) = 0;

  // The objective's own penalty at the present parameters: l2 / 2 * |weights|^2
  // for logistic regression, 0 for the others.
  virtual double Regularizer() = 0;
};

// The model that `config` describes, for inputs of `features` numbers and
// labels in [0, classes). InvalidArgument names the field, its value and its
// bound.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(const config::Model& config,
                                                   int64_t features,
                                                   int64_t classes);

}  // namespace slackline
