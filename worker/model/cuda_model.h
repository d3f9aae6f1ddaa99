// A model on one GPU: what Model does not offer because only a GPU has it.
//
// Streams: passes run on compute_stream(), loads of parameters on one of their
// own, gradients to the host on another. Each is tied to the others by events
// where it must be, and the host waits only for what it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/model/model.h"

namespace slackline {

class CudaModel : public Model {
 public:
  CudaModel* cuda() final { return this; }

  // Passes run on this stream, so it is the place for the optimizer's work.
  // Load() and Read() come after what is on it when they are called. Valid as
  // long as the model.
  virtual CUstream_st* compute_stream() const = 0;

  // Called once for each table, last table first, when the work that makes its
  // gradient has been put on compute_stream(), in most cases long before it is
  // done. `gradient` is on the GPU, as many elements as the table, the caller's
  // to change, and stays until the next pass of this model begins. Work on
  // other streams waits for an event that is recorded on compute_stream() in
  // this call; the next pass, in turn, has to come after that work on
  // compute_stream().
  //
  // It runs on LibTorch's thread for this GPU, with the GPU current, while
  // ForwardBackwardOnDevice() waits in its caller: two never run at once, and
  // all that the caller did before is visible, and the other way round.
  using GradientOnDevice = std::function<void(int table, float* gradient)>;

  // As ForwardBackward(), with the gradients left on the GPU. Returns the loss
  // when the forward pass is done; the backward pass goes on on
  // compute_stream().
  virtual absl::StatusOr<double> ForwardBackwardOnDevice(
      const Batch& batch, const GradientOnDevice& ready) = 0;

  // How long the last ForwardBackward() has waited for copies of gradients that
  // were computed.
  virtual absl::Duration copies_waited() const = 0;
};

// ---- For worker/model only

// Of builds whose LibTorch has no CUDA, too: FailedPrecondition.
absl::Status CheckCudaModelDevice(int gpu);
absl::StatusOr<std::unique_ptr<Model>> CreateCudaModel(
    const config::Model& config, int64_t features, int64_t classes,
    const ModelOptions& options);

}  // namespace slackline
