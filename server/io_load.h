// IoLoad: how busy the threads are that move this process's bytes: ZeroMQ's,
// which the load of shard threads does not show.
#pragma once

#include <map>

#include "absl/time/time.h"

namespace slackline {

// Thread-compatible.
class IoLoad {
 public:
  // The busiest I/O thread's share of the time in which it ran, or was ready to
  // run while others did, as a decayed mean up to `now`. From
  // /proc/self/task/*/schedstat (Linux, Documentation/scheduler/
  // sched-stats.rst); 0 where there is none.
  double Update(absl::Time now);

 private:
  struct Thread {
    absl::Duration busy;  // Since it was started.
    double utilisation = 0;
  };
  absl::Time updated_ = absl::InfinitePast();
  std::map<int, Thread> threads_;  // By thread id.
};

}  // namespace slackline
