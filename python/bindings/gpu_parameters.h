// Parameters in tensors on a GPU, and the gradients that come from there.
// Builds without CUDA, or without NCCL, have these functions too and refuse.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "python/bindings/parameters.h"

namespace slackline::python {

// Whether this build has GPU code. NCCL is part of it: a job of scripts begins
// by all-reduce in every mode, with the values of worker 0.
bool HasGpuCode();

// FailedPrecondition unless CUDA can use this GPU: says why not, what to do.
absl::Status CheckGpuIsThere(int gpu);

// Thread-compatible. The calling thread's current GPU is always that of the
// parameters.
class GpuParameters : public Parameters {
 public:
  GpuParameters* gpu() final { return this; }

  // Makes what comes on the computation's stream from now on see all that was
  // loaded. Not OK: the first failure of a load.
  virtual absl::Status UseLoaded() = 0;

  // ---- Gradients that go to the host

  struct Gradient {
    int table = 0;
    const float* values = nullptr;  // On the GPU.
    size_t elements = 0;
    CUstream_st* stream = nullptr;      // Whose work so far makes it.
    std::shared_ptr<const void> owner;  // Of the values.
  };
  // Begins to copy it on a stream of its own. InvalidArgument names what does
  // not fit. The owner is let go by NextCopied() or Drop().
  virtual absl::Status StartCopy(Gradient gradient) = 0;

  struct Copied {
    int table = 0;
    Payload values;
    absl::Duration waited;  // As of GradientCopier::Copy.
  };
  // The oldest gradient that was not returned before; none if there is none,
  // or if it is not there yet and `wait` is false. Errors as of
  // GradientCopier::Next().
  virtual absl::StatusOr<std::optional<Copied>> NextCopied(bool wait) = 0;
  // Waits for all copies, and forgets them.
  virtual void Drop() = 0;

  // ---- Gradients that stay on the GPU

  // Makes what comes on the computation's stream from now on come after what
  // this stream has to do now.
  virtual absl::Status Follow(CUstream_st* stream) = 0;
};

struct GpuOptions {
  int gpu = 0;
  CUstream_st* stream = nullptr;  // The computation's.
  config::Sync::PushType push_type = config::Sync::FLOAT32;
  absl::Duration timeout;  // Of each wait for the GPU.
};
// Throws a ValueError that names the table, a JobError for what CUDA reports.
std::shared_ptr<Parameters> MakeGpuParameters(std::vector<Table> tables,
                                              const GpuOptions& options);

}  // namespace slackline::python
