// ShardThread: the driver of a ShardCore, and of a SumCore beside it. Owns the
// thread; a listener to which workers and other shard threads connect, by tcp
// or ipc; a channel to the server's own control thread, by inproc, since
// requests for statistics are its alone to send; and channels to the shard
// threads that it hands shards over to. Measures the load. Decides nothing.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/net/peer_links.h"
#include "common/net/poller.h"
#include "common/net/refusal_log.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "proto/cluster.pb.h"
#include "server/shard/load_meter.h"
#include "server/shard/shard_core.h"
#include "server/sums/sum_core.h"

namespace slackline {

class ShardThread {
 public:
  struct Options {
    ShardCore::Options core;
    TimeSource time;
    std::string host;  // Numeric address to listen on.
    // Where others connect, with the same port; empty: at `host`.
    std::string announced_host;
    int port = 0;  // 0: the system chooses.
    config::Limits::Transport transport = config::Limits::AUTO;
    // What peers may have unread: ChannelOptions::unread_bytes_max.
    int64_t unread_bytes_max = ChannelOptions().unread_bytes_max;
    Poller::Options wait;
    // For experiments: takes this many times the processor time that it does,
    // by sleeping. At least 1.
    double slowdown = 1;
    // Called on this thread with the state of its shards at each cut, which
    // ends there if this is null. What it does here holds up the shards.
    std::function<void(ShardCore::CutState)> on_cut = nullptr;
    // The thread records here; nullptr: it records nothing. Outlives the
    // thread.
    TimelineTrack* track = nullptr;
  };
  // Binds, then starts the thread. The error names the endpoint and the fix. A
  // transport is for the shard threads of one server (control_endpoint.h).
  static absl::StatusOr<std::unique_ptr<ShardThread>> Start(
      Transport& transport, const Options& options,
      const config::LearningRateSchedule& schedule);
  // Ends the thread; what workers have sent and it has not read is dropped.
  ~ShardThread();

  // Any thread: the error with which the thread has stopped by itself; OK if it
  // has not.
  absl::Status failure() const;

  // Any thread of this process: what the shard thread follows from now on,
  // newer than the last one. It takes it in before it answers what it is asked
  // after.
  void Follow(std::shared_ptr<const View> view);

  const wire::Endpoints& endpoints() const { return endpoints_; }

 private:
  // What the thread has done so far, in time; between batches it is idle.
  struct Phases {
    absl::Duration receive;
    absl::Duration apply;
    absl::Duration answer;
  };
  ShardThread(Transport& transport, std::unique_ptr<Listener> peers,
              std::unique_ptr<Channel> control, const Options& options,
              const config::LearningRateSchedule& schedule);
  void Run();
  // What the batch from `begin` on cost: to be told to the meter.
  void Account(absl::Time begin, absl::Duration cpu_begin,
               LoadMeter::Batch batch);
  // What was done since the last call, in this batch, was that. Returns the
  // time.
  absl::Time EndPhase(absl::Duration Phases::*phase);
  // A message was received before `taken_in`, and is handled now; to the
  // timeline. `worker`: of whom it is; 0: of a shard thread.
  void Record(const Message& message, uint64_t worker, absl::Time received_from,
              absl::Time taken_in);
  // Takes in what has arrived; the time that messages waited goes to `*batch`.
  void HandleBatch(absl::Time begin, LoadMeter::Batch* batch);
  // True if there was a message.
  absl::StatusOr<bool> ReceiveFromControl();
  // Takes in the view that Follow() was given last, if it has not been.
  void TakeView();
  void Perform();
  void SendHandOver(const Outgoing& outgoing);
  // Sends to a worker.
  void SendAnswer(const Outgoing& outgoing);
  void Send(const Outgoing& outgoing);
  void SendStats();
  // Warns of connections that were ended since the last call, because too much
  // lay unread.
  void WarnOfOverruns();
  void Stop(const absl::Status& status);

  const Options options_;
  std::unique_ptr<Listener> peers_;
  std::unique_ptr<Channel> control_;
  wire::Endpoints endpoints_;
  std::atomic<bool> stopping_{false};
  mutable Mutex failure_mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(failure_mutex_);
  Mutex offered_mutex_;
  std::shared_ptr<const View> offered_ ABSL_GUARDED_BY(offered_mutex_);
  Waker waker_;
  // The thread alone uses what follows.
  ShardCore core_;
  ShardCore::Effects effects_;
  SumCore sums_;
  SumCore::Effects sum_effects_;
  std::vector<ShardWork> work_;  // The present batch has done this.
  LoadMeter meter_;
  absl::Duration sleep_owed_;  // Options::slowdown asks for it.
  // How long the thread had waited for a processor in all, when that was last
  // read.
  absl::Duration kept_waiting_;
  // How long it has waited since then within batches, which have counted it.
  absl::Duration kept_in_batches_;
  Phases phases_;
  absl::Time phase_since_;  // Up to then time is in phases_, within a batch.
  absl::Time next_look_;
  Poller poller_;
  std::shared_ptr<const View> view_;
  PeerLinks links_;  // Uses poller_.
  std::string trace_;
  int64_t overruns_told_ = 0;
  RefusalLog refusals_;
  std::thread thread_;
};

}  // namespace slackline
