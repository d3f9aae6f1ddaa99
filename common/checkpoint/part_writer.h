// PartWriter: writes parts of checkpoints on a thread of its own, while those
// who made them go on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
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
  PartWriter();
  // Waits for the part that is being written, and for a call of `done`; drops
  // the rest.
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Any thread. Jobs are done in their order. Those of another folder that wait
  // are dropped: a job has one checkpoint at a time, and a newer one means that
  // the one before was given up.
  void Write(Job job);

 private:
  void Run();
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace slackline
