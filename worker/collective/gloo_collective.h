// All-reduce over Gloo's TCP transport, for ranks that train on the CPU.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "worker/collective/collective.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

// A ring all-reduce: each of n ranks sends and receives 2 (n - 1) / n of the
// bytes, and only its two neighbours take part in its transfers. Part i of the
// buffer is summed in ring order and ends at rank i, which passes the result
// on; hence the same bits everywhere.
//
// A lost connection to any rank fails the collective at once, also between
// operations, unless that rank was destroyed in order: one without failures and
// without operations in flight says goodbye to the others.
//
// Has three threads: one runs the operations, one waits for the loss of a
// connection, one is Gloo's event loop. In a world of one rank there is no
// thread and no network, and operations are done as they are started.
class GlooCollective final : public Collective {
 public:
  struct Options {
    Rank rank{};             // [0, world_size).
    int32_t world_size = 1;  // At least 1.
    // Name or address of this machine by which the other ranks reach it; this
    // rank listens on it, on ports that the system picks. Not a wildcard.
    std::string host;
    // Starts all keys in the store. Each group that is ever made on the store
    // has its own, the same on all its ranks.
    std::string group;
    // [1 ms, 24 h]. For all ranks to appear in the store; then for each rank to
    // connect; then for an operation to go on when a neighbour is late, so it
    // is more than what the slowest rank needs for a step.
    absl::Duration timeout;
    // Used during Create() only.
    RendezvousStore* store = nullptr;
  };

  // Puts this rank's addresses into the store, waits for those of the others,
  // and connects to each.
  //   InvalidArgument: names the option, its value and its bound.
  //   DeadlineExceeded: names the ranks whose addresses were not there in time.
  //   Unavailable: this rank cannot listen on the host, or cannot connect to a
  //     rank, which is named.
  //   Others: what the store returned.
  static absl::StatusOr<std::unique_ptr<GlooCollective>> Create(
      const Options& options);
  ~GlooCollective() override;

  Rank rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  Ticket AllReduceAsync(absl::Span<float> data) override;
  absl::Status Wait(Ticket ticket) override;
  void Abort(absl::Status reason) override;

 private:
  class Mesh;  // The connections to all other ranks.

  GlooCollective(const Options& options, std::unique_ptr<Mesh> mesh);
  void Run();    // The thread that runs the operations.
  void Watch();  // The thread that waits for the loss of a connection.

  // Fixed after construction.
  const Rank rank_;
  const int32_t world_size_;
  const std::unique_ptr<Mesh> mesh_;  // nullptr in a world of one rank.

  std::mutex mutex_;
  std::condition_variable work_changed_;  // For Run().
  std::condition_variable done_changed_;  // For Wait().
  // Guarded by mutex_.
  std::deque<absl::Span<float>> queue_;  // Started, not yet running.
  int64_t started_ = 0;                  // Tickets given out.
  int64_t completed_ = 0;                // Tickets [0, completed_) are done.
  bool running_ = false;                 // Gloo may touch a buffer.
  bool stopping_ = false;
  absl::Status failure_;

  std::thread operations_;
  std::thread watcher_;
};

}  // namespace slackline
