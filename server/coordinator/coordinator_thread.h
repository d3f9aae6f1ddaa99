// CoordinatorThread: the driver of the CoordinatorCore. Owns the thread, the
// listener at the coordinator's address, the files of the run, and the thread
// that completes checkpoints.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "common/time/time_source.h"
#include "server/coordinator/checkpoint_thread.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/run_files.h"

namespace slackline {

class CoordinatorThread {
 public:
  struct Options {
    CoordinatorCore::Options core;
    TimeSource time;
    std::string endpoint;  // "tcp://host:port".
    // For the files of the run; empty: none. If it has the records of the run
    // that took the checkpoint that the job goes on from, these are kept, and
    // come before this one's. Those of steps that are done anew are removed
    // when the job begins to run.
    std::string folder;
    std::string mode;      // As in --mode, and the seed: for the summary.
    int64_t seed = 0;
    // A summary that cannot be written is tried again for so long, and the disk
    // of checkpoints is waited for.
    absl::Duration save_timeout = absl::Minutes(10);
  };
  // Binds, then starts the thread.
  static absl::StatusOr<std::unique_ptr<CoordinatorThread>> Start(
      Transport& transport, const Options& options);
  // Fails the job if it has not ended, waits until all members know, a lease at
  // most, until the disk of checkpoints has done what was asked of it, within
  // save_timeout, and until the summary is written. The server's own control
  // thread must have left its loop. Names the file and the cause if the summary
  // could not be written: of a job that has finished within save_timeout, of
  // one that has failed at once.
  absl::Status Finish();
  // Any thread: the summary is not tried again any more. If the disk of
  // checkpoints is being waited for, that ends, too.
  void StopSaving();
  ~CoordinatorThread();  // As Finish().

 private:
  CoordinatorThread(std::unique_ptr<Listener> listener,
                    std::unique_ptr<RunFiles> files, const Options& options);
  void Run();
  void EndCheckpoints(Poller* poller);
  void WriteSummary(Poller* poller);
  void Perform(CoordinatorCore::Effects* effects);
  void TakeCheckpoints(CoordinatorCore::Effects* effects);

  const Options options_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> stops_saving_{0};
  absl::Status saved_;  // Written by the thread, read after it has ended.
  Waker waker_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<RunFiles> files_;
  bool drops_records_;  // Once the job runs.
  CoordinatorCore core_;
  std::unique_ptr<CheckpointThread> checkpoints_;  // nullptr: none can be.
  std::thread thread_;
};

}  // namespace slackline
