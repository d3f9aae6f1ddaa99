// Models: parameters by table, the gradients of a minibatch, evaluation; on the
// CPU or on one GPU. The numerical work is LibTorch's, which this header does
// not show.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

class CudaModel;

// A minibatch. The memory is the caller's and stays unchanged during the call.
struct Batch {
  int64_t examples = 0;           // At least 1.
  const float* inputs = nullptr;  // [examples, features], row-major.
  // Of models of classes: [examples], each in [0, classes).
  const int64_t* labels = nullptr;
  const float* numbers = nullptr;  // What linear has to predict: [examples].
};

// Thread-compatible; one trainer thread is its only caller. No call throws:
// what fails inside LibTorch comes back as Internal with LibTorch's own words,
// and a batch that does not fit the model as InvalidArgument. With a GPU, what
// it reports comes back from the call that notices it, and every wait for it
// ends with DeadlineExceeded after ModelOptions::gpu_timeout, those inside
// LibTorch excepted.
class Model : public ParameterMemory {
 public:
  // Parameters are zeros at first. On a GPU, what Load() starts goes on beside
  // the caller and beside the computation of layers that do not use the table;
  // what fails of it, the next call below returns.

  // Called once for each table as soon as its gradient is complete, last table
  // first, on the thread of ForwardBackward() and while the layers before it
  // are still computing. The payload (float32, the order of parameter()) owns
  // the gradient in the memory of the host and nobody writes to it any more.
  using GradientReady = std::function<void(int table, Payload gradient)>;

  // The objective over the batch (mean loss plus Regularizer()) and its
  // gradient at the present parameters. After an error some gradients may have
  // been handed out.
  virtual absl::StatusOr<double> ForwardBackward(
      const Batch& batch, const GradientReady& ready) = 0;

  struct Evaluation {
    double loss_sum = 0;  // Sum over the examples, without Regularizer().
    // Examples whose most likely class is the label; nothing for models of
    // numbers.
    std::optional<int64_t> correct;
    int64_t examples = 0;
  };
  virtual absl::StatusOr<Evaluation> Evaluate(const Batch& batch) = 0;

  // The objective's own penalty at the present parameters: l2 / 2 * |weights|^2
  // for logistic and linear regression, 0 for the others.
  virtual absl::StatusOr<double> Regularizer() = 0;

  // This model with what only a GPU has; null for one on the CPU.
  virtual CudaModel* cuda() { return nullptr; }
};

struct ModelOptions {
  static constexpr int kCpu = -1;
  int gpu = kCpu;  // Or the index of a GPU, by CUDA's numbering.
  // With a GPU: what ForwardBackward() rounds gradients to on their way to the
  // host. A gradient too large for FLOAT16 is InvalidArgument.
  config::Sync::PushType push_type = config::Sync::FLOAT32;
  absl::Duration gpu_timeout = absl::Minutes(2);
};

// OK if CreateModel() can use options.gpu. FailedPrecondition if this build has
// no GPU code or the host no such GPU; says what to do. Cheap: for the start of
// a program.
absl::Status CheckModelDevice(const ModelOptions& options);

// The model that `config` describes, for inputs of `features` numbers and
// labels in [0, classes), which linear does not look at. InvalidArgument names
// the field, its value and its bound; CheckModelDevice()'s errors;
// ResourceExhausted: too little memory on the GPU, or for transfers on the
// host.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const config::Model& config, int64_t features, int64_t classes,
    const ModelOptions& options = {});

}  // namespace slackline
