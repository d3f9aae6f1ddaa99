// Where a worker's parameters lie: the tables of a job, and the memory that the
// computation reads them from. Whoever has a model implements it, or uses
// HostParameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/typed_tensor.h"
#include "common/payload.h"
#include "proto/view.pb.h"
#include "worker/memory/make_tables.h"

struct CUstream_st;  // What cudaStream_t points to.

namespace slackline {

// Thread-compatible.
class ParameterMemory {
 public:
  virtual ~ParameterMemory() = default;

  // One for each parameter, first layer first: name, shape, initializer, and
  // perhaps an optimizer; the shard fields are not set. Valid and unchanged as
  // long as this object.
  virtual absl::Span<const wire::Table> tables() const = 0;

  // The parameter's own memory, in the row-major order of its shape. What is
  // written here counts from the next computation on. Stays at one address as
  // long as this object. On a GPU this is the GPU's memory, which the host
  // cannot read or write: there it is for work on gpu()->stream only.
  virtual absl::Span<float> parameter(int table) = 0;

  // Replaces elements [first_element, first_element + values.size() / 4) of a
  // table. Works on every device. Returns when `values` may be let go. Outside
  // the table: fatal.
  virtual void Load(int table, int64_t first_element,
                    const Payload& values) = 0;
  // Copies a whole table out, on every device. `out` has its size.
  virtual absl::Status Read(int table, absl::Span<float> out) = 0;

  // What belongs to the model and is not trained here, for its file: for
  // example the running means of a normalisation.
  virtual absl::Span<const TypedTensor> companions() const { return {}; }

  // The GPU that the parameters are on; none: they are the host's.
  struct Gpu {
    int index = 0;  // By CUDA's numbering.
    // The computation uses the parameters as the work on this stream before it
    // leaves them.
    CUstream_st* stream = nullptr;
  };
  virtual std::optional<Gpu> gpu() const { return std::nullopt; }
};

// Parameters in the memory of the host that somebody else owns, for example
// tensors of a library.
class HostParameters final : public ParameterMemory {
 public:
  struct Parameter {
    TableSpec table;
    // As many floats as the shape says, contiguous, row-major. The caller's;
    // outlives this object.
    float* values = nullptr;
  };
  // InvalidArgument names the parameter, and what is wrong with its name, its
  // shape, its optimizer or its address.
  static absl::StatusOr<HostParameters> Create(
      const std::vector<Parameter>& parameters);

  absl::Span<const wire::Table> tables() const override { return tables_; }
  absl::Span<float> parameter(int table) override;
  void Load(int table, int64_t first_element, const Payload& values) override;
  absl::Status Read(int table, absl::Span<float> out) override;
  absl::Span<const TypedTensor> companions() const override {
    return companions_;
  }
  void SetCompanions(std::vector<TypedTensor> companions) {
    companions_ = std::move(companions);
  }

 private:
  HostParameters() = default;

  std::vector<TypedTensor> companions_;
  std::vector<wire::Table> tables_;
  std::vector<float*> values_;
};

}  // namespace slackline
