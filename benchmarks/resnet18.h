// ResNet-18 (He et al., "Deep Residual Learning for Image Recognition", 2015)
// for pictures of 32x32, with gradients handed out as a Model does. LibTorch,
// which does the work, is named in its source only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "worker/model/model.h"

namespace slackline::bench {

// The network as for ImageNet, stem of 7x7 and pooling included, with 10
// classes: 11.2 M parameters, and little computation for each. Batch norm by
// the statistics of the batch. Thread-compatible. What fails is fatal.
class Resnet18 {
 public:
  // Parameters from `seed`, and `batches` batches of noise from `data_seed`.
  struct Options {
    int64_t batch_size = 8;  // At least 2.
    int batches = 1;         // At least 1.
    uint64_t seed = 1;
    uint64_t data_seed = 1;
  };
  explicit Resnet18(const Options& options);
  ~Resnet18();

  int tables() const;
  absl::Span<float> parameter(int table);
  // On batch `step` modulo the number of batches.
  void ForwardBackward(int64_t step, const Model::GradientReady& ready);

 private:
  class Network;
  const std::unique_ptr<Network> network_;
};

}  // namespace slackline::bench
