// A collective over connections among all ranks of a group, of whatever kind:
// what runs its operations one after the other, and how it fails.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/keys/secret.h"
#include "common/mutex.h"
#include "common/net/delayed/link_model.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "worker/collective/collective.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

class Mesh;

// A group that forms, as one of its ranks sees it.
struct GroupOptions {
  Rank rank{};             // [0, world_size).
  int32_t world_size = 1;  // At least 1.
  // Name or address of this machine by which the other ranks reach it. Not a
  // wildcard. Over tcp this rank listens on it, or on `listen` if that is not
  // empty, which may be a wildcard.
  std::string host;
  std::string listen = "";
  int port = 0;  // Over tcp, to listen on; 0: the system picks one.
  // Starts all keys in the store. Each group that is ever tried on the store
  // has its own, the same on all its ranks.
  std::string group;
  // [1 ms, 24 h]. For the group to form: all ranks appear in the store and
  // connect to each other.
  absl::Duration connect_timeout = absl::Seconds(60);
  // [1 ms, 24 h]. For an operation to go on when another rank is late, so it is
  // more than what the slowest rank needs for a step.
  absl::Duration timeout;
  // An all-reduce takes at least RingTime() over this link; the rest of it is
  // waited out where the operations run.
  std::optional<LinkModel> link = std::nullopt;
  // Over tcp all ranks of the job, and nobody else, have it: connections prove
  // it and are encrypted. Nullopt: whoever reads the store can join, and who is
  // on the way can read and change everything.
  std::optional<Secret> key = std::nullopt;
  // Asked on the caller's thread while the group forms, at least every 50 ms
  // while the store answers in time; the first status that is not OK ends the
  // attempt. Null: it ends by itself only.
  std::function<absl::Status()> keep_trying = nullptr;
  // Used while the group forms. May be null in a world of one rank.
  RendezvousStore* store = nullptr;
  // Operations go to these tracks, of the ranks and of sums by servers, once
  // the group has formed; nullptr: nowhere. They outlive the group.
  TimelineTrack* track = nullptr;
  TimelineTrack* sums_track = nullptr;
  TimeSource time = {};
  // Makes the connections for sums by servers; null: there are none.
  std::function<std::unique_ptr<Mesh>()> sums = nullptr;
};

// A group that has formed.
struct ConnectedGroup {
  std::unique_ptr<Collective> collective;
  const char* over = "";  // "tcp", for example.
  std::string why;        // Nothing faster could be; empty: for no reason.
};

// The connections of one rank to all others. A lost connection to any rank
// fails the group at once, also between operations, unless that rank has said
// goodbye.
class Mesh {
 public:
  struct Operation {
    absl::Span<float> data;
    std::optional<Rank> root;  // A broadcast has one, an all-reduce none.
  };

  virtual ~Mesh() = default;

  // Finds the others and connects to all. After a failure nothing is left of
  // the attempt but the keys in the store.
  virtual absl::Status Join(const GroupOptions& options) = 0;

  // One thread calls these, in this order; after a failure only GiveUp().
  virtual absl::Status BeginWatch() = 0;
  // `number` counts the operations from 0. Errors as of Collective::Wait().
  virtual absl::Status Run(const Operation& operation, int64_t number) = 0;
  // Instead of either GiveUp(). The others miss nothing of what was sent.
  virtual void SayGoodbye() = 0;
  // Resets all connections, so that the others notice.
  virtual void GiveUp() = 0;

  // On another thread: returns what happened when a connection is lost. OK if
  // EndWatch() is called, and for connections to ranks that said goodbye.
  virtual absl::Status AwaitLoss() = 0;
  virtual void EndWatch() = 0;

  // Run() fails at once, now or when it is called. Any thread.
  virtual void Interrupt() = 0;
};

// "all-reduce 7 on rank 0 of 4: "
std::string OperationText(const Mesh::Operation& operation, int64_t number,
                          int rank, int32_t world_size);
// Unavailable: connections to these ranks were lost.
absl::Status ConnectionsLost(const std::string& prefix,
                             const std::vector<int>& lost,
                             const std::string& reason);

// Has a thread for each mesh, which runs its operations, beside those of the
// meshes, and one that waits for the loss of a connection. In a world of one
// rank there is no thread and no mesh, and operations are done as they are
// started.
//
// One that is destroyed without failures and without operations in flight says
// goodbye to the others.
class MeshCollective final : public Collective {
 public:
  // `mesh` is nullptr in a world of one rank; `sums` if no servers sum.
  MeshCollective(const GroupOptions& options, std::unique_ptr<Mesh> mesh,
                 std::unique_ptr<Mesh> sums);
  ~MeshCollective() override;

  Rank rank() const override { return rank_; }
  int32_t world_size() const override { return world_size_; }
  Ticket AllReduceAsync(absl::Span<float> data) override;
  bool has_servers() const override { return meshes_[kServers] != nullptr; }
  Ticket SumByServersAsync(absl::Span<float> data) override;
  Ticket BroadcastAsync(absl::Span<float> data, Rank root) override;
  absl::Status Wait(Ticket ticket) override;
  void Abort(absl::Status reason) override;

 private:
  using Operation = Mesh::Operation;
  using SteadyTime = std::chrono::steady_clock::time_point;
  // Operations of one lane run one after the other.
  enum LaneIndex { kRanks, kServers, kLanes };
  struct Lane {
    std::deque<Operation> queue;  // Started, not yet running.
    int64_t started = 0;          // Tickets given out.
    int64_t completed = 0;        // The first ones of these are done.
    bool running = false;         // It may touch a buffer.
  };

  Ticket Start(LaneIndex lane, const Operation& operation);
  void Run(LaneIndex lane);  // The thread that runs its operations.
  // Has the link for as long as the operation has to take over it, after those
  // that have it already; returns the end.
  SteadyTime OccupyLink(LaneIndex lane, const Operation& operation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch();  // The thread that waits for the loss of a connection.
  // Has all threads see a failure.
  void Interrupt();

  // Fixed after construction.
  const Rank rank_;
  const int32_t world_size_;
  const std::optional<LinkModel> link_;
  const TimeSource time_;
  const std::array<TimelineTrack*, kLanes> tracks_;
  const std::array<std::unique_ptr<Mesh>, kLanes> meshes_;

  Mutex mutex_;
  std::array<std::condition_variable, kLanes> work_changed_;  // For Run().
  std::condition_variable done_changed_;                      // For Wait().
  std::array<Lane, kLanes> lanes_ ABSL_GUARDED_BY(mutex_);
  SteadyTime link_free_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  std::array<std::thread, kLanes> operations_;
  std::thread watcher_;
};

// Forms the group through `mesh`; without it in a world of one rank.
//   InvalidArgument: names the option, its value and its bound.
//   Others: as of Mesh::Join().
absl::StatusOr<std::unique_ptr<Collective>> FormGroup(
    const GroupOptions& options, std::unique_ptr<Mesh> mesh);

}  // namespace slackline
