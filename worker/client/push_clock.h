// PushClock: the clock that this worker pushes at present, and which tables it
// has pushed of it. Each table is pushed once for a clock, in any order.
//
// Owns the clock and the tables, and which pull is asked for behind the clock's
// pushes. Transitions: End() of a table, the last of which begins the next
// clock; GoTo() another clock; PullBehind() and ForgetPull().
//
// No I/O, threads or time. Thread-compatible.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "common/view/shard_map.h"

namespace slackline {

class PushClock {
 public:
  explicit PushClock(int table_count)
      : pushed_(static_cast<size_t>(table_count), false) {}

  Clock clock() const { return clock_; }
  // No table of the clock is pushed yet.
  bool BetweenClocks() const { return count_ == 0; }
  // InvalidArgument unless the table is one that is to be pushed for `clock`.
  // The names are those of the view.
  absl::Status Check(Clock clock, TableId table, const View& view) const;

  // The table, which is one to be pushed, is pushed. True if that was the last
  // one: the next clock has begun, and no pull is behind its pushes.
  bool End(TableId table);
  // The next push is of `clock`. The tables that are pushed stay so.
  void GoTo(Clock clock) { clock_ = clock; }

  // The pull that asks for each shard behind its push of the clock; 0: none.
  uint64_t pull_behind() const { return pull_behind_; }
  // The clock has no such pull, and no table of it is pushed.
  void PullBehind(uint64_t pull_id);
  void ForgetPull(uint64_t pull_id) {
    if (pull_behind_ == pull_id) pull_behind_ = 0;
  }

 private:
  Clock clock_ = 0;
  std::vector<bool> pushed_;  // By table.
  size_t count_ = 0;          // Tables that are pushed.
  uint64_t pull_behind_ = 0;
};

}  // namespace slackline
