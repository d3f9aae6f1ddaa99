// ParameterTransfers: brings parameters to a GPU, and from it, while it
// computes.
//
// What is loaded goes through pinned memory, as large as the parameters, on a
// stream of its own: behind what the computation's stream has to do when the
// load is started, and before what comes there after UseLoaded(). Nothing waits
// for the whole GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "worker/gpu/cuda_handles.h"

namespace slackline {

// Makes its GPU the calling thread's current one. Thread-compatible.
class ParameterTransfers {
 public:
  struct Options {
    int gpu = 0;                     // By CUDA's numbering.
    cudaStream_t compute = nullptr;  // Of the computation; the caller's.
    absl::Duration timeout;          // Of each wait for the GPU.
  };
  // `parameters` are memory of the GPU, by table, and outlive this object. Each
  // has at least one element. ResourceExhausted names the bytes.
  static absl::StatusOr<std::unique_ptr<ParameterTransfers>> Create(
      std::vector<absl::Span<float>> parameters, const Options& options);
  // Waits for the loads in flight.
  ~ParameterTransfers();

  absl::Span<float> parameter(int table) const {
    return tables_[static_cast<size_t>(table)].parameter;
  }

  // Begins to replace elements [first_element, first_element + values.size() /
  // 4) of a table. Returns when `values` may be let go. What fails shows in
  // status(). Outside the table: fatal.
  void Load(int table, int64_t first_element, const Payload& values);
  // Makes what comes on the computation's stream from now on see the loads of
  // the table so far. What fails shows in status().
  void UseLoaded(int table);
  // Copies a table to the host, loads so far included. `out` has its size.
  // DeadlineExceeded after the timeout.
  absl::Status Read(int table, absl::Span<float> out);

  // The first failure of Load() or UseLoaded(). A GPU rarely works again after
  // one: from then on loads do nothing, and Read() returns it.
  const absl::Status& status() const { return failure_; }

 private:
  struct Table {
    absl::Span<float> parameter;
    size_t staging_offset = 0;  // Of its part of staging_, in bytes.
    CudaEvent loaded;           // Behind its last load.
    bool load_pending = false;  // The computation does not wait for it yet.
    // Elements of its part of staging_ before this one may be on their way.
    int64_t staged_end = 0;
  };
  ParameterTransfers(const Options& options, std::vector<Table> tables,
                     CudaStream stream, CudaEvent order, CudaEvent read,
                     PinnedMemory staging)
      : options_(options),
        tables_(std::move(tables)),
        stream_(std::move(stream)),
        order_(std::move(order)),
        read_(std::move(read)),
        staging_(std::move(staging)) {}

  std::byte* Staging(const Table& table, int64_t element) const;
  absl::Status StartLoad(Table& table, int64_t first_element,
                         const Payload& values);

  const Options options_;
  std::vector<Table> tables_;
  const CudaStream stream_;
  const CudaEvent order_;  // Free again after each use.
  const CudaEvent read_;
  const PinnedMemory staging_;
  absl::Status failure_;
};

}  // namespace slackline
