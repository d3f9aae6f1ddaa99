// PartWriter: writes parts of checkpoints, and what workers keep, on a thread
// of its own, while those who made them go on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/checkpoint/kept_file.h"
#include "common/checkpoint/shard_state.h"
#include "common/mutex.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

class PartWriter {
 public:
  struct Job {
    std::string folder;
    std::string file;
    std::vector<ShardState> shards;
    // Called on the writer's thread when the part is on the disk, or could not
    // be written. Not called once the writer is being destroyed.
    std::function<void(const absl::StatusOr<checkpoint::Part>&)> done;
  };
  // As WriteKept().
  struct KeptJob {
    std::string folder;
    int32_t rank = 0;
    WorkerState state;
    // As of a part.
    std::function<void(const absl::StatusOr<checkpoint::Kept>&)> done;
  };
  // A disk that hangs is waited for at most so long at the end.
  explicit PartWriter(absl::Duration end_wait_max = absl::Seconds(10));
  // Waits for what is being written, and for a call of `done`; drops the rest.
  // When the time is over, it says so in the log, and the thread is left behind
  // with it for as long as the process lives.
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Any thread. Jobs are done in their order. Those of another folder that wait
  // are dropped: a job has one checkpoint at a time, and a newer one means that
  // the one before was given up.
  void Write(Job job);
  void Write(KeptJob job);

 private:
  struct Work {
    std::string folder;
    // Writes, and returns what tells how that went.
    std::function<std::function<void()>()> write;
  };
  // With the thread, which may outlive this.
  struct Shared {
    Mutex mutex;
    std::condition_variable changed;
    std::deque<Work> jobs ABSL_GUARDED_BY(mutex);
    // In whose folder something is written; empty: nothing is.
    std::string writing ABSL_GUARDED_BY(mutex);
    bool telling ABSL_GUARDED_BY(mutex) = false;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
    bool ended ABSL_GUARDED_BY(mutex) = false;
  };
  void Add(Work work);
  static void Run(const std::shared_ptr<Shared>& shared);

  const absl::Duration end_wait_max_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::thread thread_;
};

}  // namespace slackline
