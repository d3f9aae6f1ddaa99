// CoordinatorThread: the driver of the CoordinatorCore. Owns the thread, the
// ROUTER socket at the coordinator's address, and the files of the run.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "server/coordinator/coordinator_core.h"
#include "server/coordinator/run_files.h"

namespace slackline {

class CoordinatorThread {
 public:
  struct Options {
    CoordinatorCore::Options core;
    std::string endpoint;  // "tcp://host:port".
    std::string folder;    // For the files of the run; empty: none.
    std::string mode;      // As in --mode, and the seed: for the summary.
    int64_t seed = 0;
  };
  // Binds, then starts the thread.
  static absl::StatusOr<std::unique_ptr<CoordinatorThread>> Start(
      NetContext& context, const Options& options);
  // Fails the job if it has not ended, and waits until all members know, a
  // lease at most. The server's own control thread must have left its loop.
  ~CoordinatorThread();

 private:
  CoordinatorThread(std::unique_ptr<RouterSocket> router,
                    std::unique_ptr<RunFiles> files, const Options& options);
  void Run();
  void Perform(CoordinatorCore::Effects* effects);

  const Options options_;
  std::atomic<bool> stopping_{false};
  Waker waker_;
  std::unique_ptr<RouterSocket> router_;
  std::unique_ptr<RunFiles> files_;
  CoordinatorCore core_;
  std::thread thread_;
};

}  // namespace slackline
