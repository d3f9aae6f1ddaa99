// CheckpointThread: completes checkpoints and removes what is left of those
// that were given up, on a thread of its own: a disk may take its time.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

class CheckpointThread {
 public:
  struct Options {
    std::string root;
    uint64_t run = 0;
    int keep = 3;
    // Called on its thread when there is a result to be taken.
    std::function<void()> on_result;
  };
  struct Result {
    int32_t cut = 0;
    absl::StatusOr<std::string> folder;
  };
  explicit CheckpointThread(Options options);
  ~CheckpointThread();  // As Finish().
  CheckpointThread(const CheckpointThread&) = delete;
  CheckpointThread& operator=(const CheckpointThread&) = delete;

  // These wait for nothing; what they ask for is done in that order.
  void Complete(int32_t cut, checkpoint::Manifest manifest);
  void Remove(int32_t cut);
  // Those of Complete() that have not been taken yet.
  std::vector<Result> TakeResults();
  // Waits until all that was asked for is done.
  void Finish();

 private:
  struct Task {
    int32_t cut = 0;
    std::optional<checkpoint::Manifest> manifest;  // nullopt: to be removed.
  };
  void Add(Task task);
  void Run();

  const Options options_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<Result> results_ ABSL_GUARDED_BY(mutex_);
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace slackline
