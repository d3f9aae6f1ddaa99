// All-reduce over Gloo's TCP transport, for ranks that train on the CPU.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "common/net/delayed/link_model.h"
#include "worker/collective/collective.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

// A ring all-reduce: each of n ranks sends and receives 2 (n - 1) / n of the
// bytes, and only its two neighbours take part in its transfers. Part i of the
// buffer is summed in ring order and ends at rank i, which passes the result
// on; hence the same bits everywhere. A broadcast goes around the same ring
// from its root, in pieces: each rank but the last sends the bytes once.
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
    // Starts all keys in the store. Each group that is ever tried on the store
    // has its own, the same on all its ranks.
    std::string group;
    // [1 ms, 24 h]. For the group to form: all ranks appear in the store and
    // connect to each other.
    absl::Duration connect_timeout = absl::Seconds(60);
    // [1 ms, 24 h]. For an operation to go on when a neighbour is late, so it
    // is more than what the slowest rank needs for a step.
    absl::Duration timeout;
    // An all-reduce takes at least RingTime() over this link; the rest of it is
    // waited out where the operations run.
    std::optional<LinkModel> link = std::nullopt;
    // Create() asks, on the caller's thread and at least every 50 ms while the
    // store answers in time, and gives up at the first status that is not OK.
    // Null: it gives up by itself only.
    std::function<absl::Status()> keep_trying = nullptr;
    // Used during Create() only.
    RendezvousStore* store = nullptr;
  };

  // Puts this rank's addresses into the store, waits for those of the others,
  // and connects to all at once. After a failure nothing is left of the attempt
  // but the keys in the store, so the next one is another group.
  //   InvalidArgument: names the option, its value and its bound.
  //   DeadlineExceeded: names the ranks whose addresses were not there in time.
  //   Unavailable: this rank cannot listen on the host, or has no connection to
  //     other ranks, which are named. A rank that gives up closes its
  //     connections, so this may be one that noticed a dead rank earlier.
  //   Others: what keep_trying or the store returned.
  static absl::StatusOr<std::unique_ptr<GlooCollective>> Create(
      const Options& options);
  ~GlooCollective() override;

  Rank rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  Ticket AllReduceAsync(absl::Span<float> data) override;
  Ticket BroadcastAsync(absl::Span<float> data, Rank root) override;
  absl::Status Wait(Ticket ticket) override;
  void Abort(absl::Status reason) override;

 private:
  class Mesh;  // The connections to all other ranks.
  struct Operation {
    absl::Span<float> data;
    std::optional<Rank> root;  // Of a broadcast; else it is an all-reduce.
  };

  GlooCollective(const Options& options, std::unique_ptr<Mesh> mesh);
  Ticket Start(const Operation& operation);
  void Run();  // The thread that runs the operations.
  absl::Duration LeastTime(const Operation& operation) const;
  void Watch();  // The thread that waits for the loss of a connection.

  // Fixed after construction.
  const Rank rank_;
  const int32_t world_size_;
  const std::optional<LinkModel> link_;
  const std::unique_ptr<Mesh> mesh_;  // nullptr in a world of one rank.

  Mutex mutex_;
  std::condition_variable work_changed_;  // For Run().
  std::condition_variable done_changed_;  // For Wait().
  // Started, not yet running.
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;  // Tickets given out.
  // Tickets [0, completed_) are done.
  int64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;  // Gloo may touch a buffer.
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  std::thread operations_;
  std::thread watcher_;
};

}  // namespace slackline
