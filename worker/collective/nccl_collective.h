// All-reduce over NCCL, for ranks that train on GPUs, each on one of its own.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "proto/cluster.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/rendezvous.h"
#include "worker/collective/rendezvous_store.h"
#include "worker/gpu/cuda_handles.h"

struct ncclComm;

namespace slackline {

// For main(), before it starts a thread: NCCL takes the algorithm of all-reduce
// from the environment variable NCCL_ALGO alone, for the process. This sets it;
// what the user has set stays and counts.
//
// RING and TREE give the same bits in each run over the same machines; with ANY
// that is so as long as NCCL chooses alike, which it does by size and topology.
void SetNcclAlgorithm(config::Collective::Algorithm algorithm);

// Buffers are in the memory of the GPU. An operation begins when all that is on
// the computation's stream at its start is done, on a stream of its own, so
// what comes later on the computation's stream runs beside it. What is put on
// any stream after Wait() sees the result.
//
// Without threads: a failure is noticed, and an Abort() heeded, by the next
// call on this rank, and while it waits. Until then the others wait for it. So:
//   - Whom NCCL has lost, it does not tell; messages name no other rank.
//   - NCCL notices at once that a process has died if it talked to it through
//     sockets or InfiniBand. Inside a machine it does not: then it is the
//     timeout that fails the others, or an Abort() by who knows better.
//   - Where NCCL hangs while it gives up, the call that does so takes 20 s more
//     and leaves a thread behind.
//
// Not shrunk (ncclCommShrink) when ranks are lost, but made anew: shrinking a
// communicator whose lost ranks cannot take part is known to hang.
class NcclCollective final : public Collective {
 public:
  struct Options {
    Rank rank{};             // [0, world_size).
    int32_t world_size = 1;  // At least 1.
    int gpu = 0;             // As CUDA counts GPUs. No other rank uses it.
    // The stream of the computation that fills the buffers. Outlives the
    // collective.
    cudaStream_t stream = nullptr;
    // Starts all keys in the store. Each group that is ever tried on the store
    // has its own, the same on all its ranks.
    std::string group;
    // [1 ms, 24 h]. For the group to form: all ranks appear in the store,
    // connect to each other and do a first operation.
    absl::Duration connect_timeout = absl::Seconds(60);
    // [1 ms, 24 h]. For the next operation to be done, so it is more than what
    // the slowest rank needs for a step.
    absl::Duration timeout;
    // Create() asks, on the caller's thread and at least every 50 ms while the
    // store answers in time, and gives up at the first status that is not OK.
    // Null: it gives up by itself only.
    std::function<absl::Status()> keep_trying = nullptr;
    // Used during Create() only.
    RendezvousStore* store = nullptr;
  };

  // Makes `gpu` the calling thread's current GPU, as it has to be in all later
  // calls but Abort(). A world of one rank needs neither GPU nor store.
  //   InvalidArgument: names the option, its value and its bound.
  //   FailedPrecondition: there is no such GPU, or NCCL refuses it.
  //   DeadlineExceeded: names the ranks that were not there in time, or the
  //     call of NCCL that was not done.
  //   Unavailable: a rank was lost, or runs another version of NCCL.
  //   Others: what keep_trying, the store or CUDA returned.
  static absl::StatusOr<std::unique_ptr<NcclCollective>> Create(
      const Options& options);
  // Waits up to 2 s for the other ranks to end the last operation.
  ~NcclCollective() override;

  Rank rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  // May wait, up to the timeout, for ranks that begin an operation much later,
  // if NCCL connects to them only now (algorithm ANY).
  Ticket AllReduceAsync(absl::Span<float> data) override;
  Ticket BroadcastAsync(absl::Span<float> data, Rank root) override;
  absl::Status Wait(Ticket ticket) override;
  void Abort(absl::Status reason) override;

 private:
  struct Operation {
    absl::Span<float> data;
    std::optional<Rank> root;  // A broadcast has one, an all-reduce none.
  };
  using KeepOn = std::function<absl::Status()>;

  explicit NcclCollective(const Options& options);
  absl::Status Join(const Options& options, const Rendezvous& rendezvous);
  Ticket Start(const Operation& operation);
  // Puts the operation on the side stream. Here and below a status of keep_on
  // that is not OK ends the wait.
  absl::Status Launch(const Operation& operation, const KeepOn& keep_on);
  // Waits until operation `number` is done.
  absl::Status Await(int64_t number, const KeepOn& keep_on);
  absl::Status CountDone();  // Moves completed_ on.
  // The result of a call that NCCL may still be busy with. `result` is of type
  // ncclResult_t.
  absl::Status Settle(int result, const std::string& call,
                      const KeepOn& keep_on);
  absl::Status CheckCommunicator();
  // `status`, or the failure before it.
  absl::Status Fail(absl::Status status);
  absl::Status failure();
  void GiveUp();  // After a failure. Then nothing here touches any buffer.
  void Leave();   // After all operations, none of which failed.
  std::string Self() const;
  absl::Status Late() const;  // Says that operation completed_ is late.

  // Fixed after construction.
  const Rank rank_;
  const int32_t world_size_;
  const int gpu_;
  const absl::Duration timeout_;
  const cudaStream_t computation_;

  // The thread that calls uses these. Members are destroyed last to first.
  DeviceMemory scratch_;  // One float, for the first operation.
  CudaStream side_;
  CudaEvent filled_;            // What computation_ had to do before.
  std::deque<CudaEvent> done_;  // Ends of operations, from completed_ on.
  std::vector<CudaEvent> free_events_;
  ncclComm* communicator_ = nullptr;  // nullptr: world of one, or given up.
  int64_t started_ = 0;               // Tickets given out.
  int64_t completed_ = 0;             // Tickets [0, completed_) are done.

  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
