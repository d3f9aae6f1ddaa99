// Parameters in the memory of a GPU that somebody else owns, for example
// tensors of a library: what HostParameters is for the host's.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/io/typed_tensor.h"
#include "common/payload.h"
#include "proto/view.pb.h"
#include "worker/gpu/parameter_transfers.h"
#include "worker/memory/parameter_memory.h"

namespace slackline {

// Makes its GPU the calling thread's current one. Thread-compatible.
class CudaParameters final : public ParameterMemory {
 public:
  struct Parameter {
    TableSpec table;
    // As many floats of the GPU as the shape says, contiguous, row-major. The
    // caller's; outlives this object.
    float* values = nullptr;
  };
  // InvalidArgument names the parameter, and what is wrong with its name, its
  // shape, its optimizer or its address: it is memory of another device, too.
  // FailedPrecondition: there is no such GPU. ResourceExhausted names the
  // bytes: as many as all parameters have are pinned on the host.
  static absl::StatusOr<std::unique_ptr<CudaParameters>> Create(
      const std::vector<Parameter>& parameters,
      const ParameterTransfers::Options& options);

  absl::Span<const wire::Table> tables() const override { return tables_; }
  absl::Span<float> parameter(int table) override;
  void Load(int table, int64_t first_element, const Payload& values) override {
    transfers_->Load(table, first_element, values);
  }
  absl::Status Read(int table, absl::Span<float> out) override {
    return transfers_->Read(table, out);
  }
  absl::Span<const TypedTensor> companions() const override {
    return companions_;
  }
  void SetCompanions(std::vector<TypedTensor> companions) {
    companions_ = std::move(companions);
  }
  std::optional<Gpu> gpu() const override {
    return Gpu{.index = options_.gpu, .stream = options_.compute};
  }

  // Makes what comes on the computation's stream from now on see all that was
  // loaded. Not OK: the first failure of a load, or this one's.
  absl::Status UseLoaded();

 private:
  CudaParameters(const ParameterTransfers::Options& options,
                 std::vector<wire::Table> tables,
                 std::unique_ptr<ParameterTransfers> transfers)
      : options_(options),
        tables_(std::move(tables)),
        transfers_(std::move(transfers)) {}

  const ParameterTransfers::Options options_;
  const std::vector<wire::Table> tables_;
  const std::unique_ptr<ParameterTransfers> transfers_;
  std::vector<TypedTensor> companions_;
};

}  // namespace slackline
