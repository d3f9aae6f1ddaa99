// GradientCopier: takes gradients off a GPU while it computes on.
//
// Each copy runs on a stream of its own, behind what the compute stream had to
// do when it was started, and goes to pinned memory: backward goes on
// meanwhile. If asked for, the numbers are rounded to 16 bits on the GPU before
// and expanded on the host after, which halves the bytes between them. An event
// per copy tells when it is there; nothing waits for the whole GPU.
//
// It has no thread: a hand-over from one costs more than most copies take, and
// who needs the gradients waits for them anyhow.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/floats/half.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "worker/gpu/cuda_handles.h"
#include "worker/gpu/pinned_pool.h"

namespace slackline {

// Thread-compatible. The calling thread's current GPU is always that of
// Create().
class GradientCopier {
 public:
  struct Options {
    std::optional<HalfType> round_to;
    int64_t elements_max = 0;  // Of one copy.
    // Of pinned memory, kept until the end; beyond it copies use ordinary
    // memory, and are slower.
    size_t pinned_bytes_max = 0;
    absl::Duration timeout;  // Of Next().
  };
  // For the gradients of tables of so many elements. Their pinned memory is
  // enough if those of at most two steps are held.
  static Options OptionsFor(absl::Span<const int64_t> table_elements,
                            config::Sync::PushType push_type,
                            absl::Duration timeout);
  static absl::StatusOr<std::unique_ptr<GradientCopier>> Create(
      const Options& options);
  // Waits for the copies in flight.
  ~GradientCopier();

  struct Source {
    int id = 0;              // Comes back with the copy.
    absl::string_view name;  // For errors; outlives the copy.
    const float* device = nullptr;
    int64_t elements = 0;               // At least 1.
    std::shared_ptr<const void> owner;  // Of that memory.
    bool exact = false;  // Not rounded, whatever the options say.
  };
  // Begins to copy what the work on `producer` so far completes. The owner is
  // let go on the thread of Next(), when nobody reads the memory any more.
  absl::Status StartAfter(cudaStream_t producer, Source source);

  // True if no copy was started that Next() has not returned.
  bool empty() const { return copies_.empty(); }

  // Whether Next() would not wait. False if it may not be called.
  bool NextIsThere() const;

  struct Copy {
    int id = 0;
    Payload values;  // float32. Its memory is used again when it is let go.
    // How long Next() has waited for the copy itself, after what it follows.
    absl::Duration waited;
  };
  // Waits for the oldest copy; empty() must be false. DeadlineExceeded after
  // the timeout; the copy stays. InvalidArgument if a number that was rounded
  // to float16 is too large for it, or is none; the copy is dropped.
  absl::StatusOr<Copy> Next();

  // Waits for all copies and drops them.
  void Drop();

  PinnedPool::Usage usage() const { return pool_.usage(); }

 private:
  struct InFlight {
    Source source;
    bool rounded;
    PinnedPool::Buffer buffer;
    CudaEvent begun;  // What it follows is done.
    CudaEvent done;
  };
  absl::StatusOr<CudaEvent> TakeEvent();
  GradientCopier(const Options& options, CudaStream stream, CudaEvent order,
                 DeviceMemory rounded);

  const Options options_;
  PinnedPool pool_;
  const CudaStream stream_;
  const CudaEvent order_;
  // Of one copy after the other, in the order of the stream.
  const DeviceMemory rounded_;
  std::deque<InFlight> copies_;         // Oldest first.
  std::vector<CudaEvent> free_events_;  // At most two for each in flight.
};

}  // namespace slackline
