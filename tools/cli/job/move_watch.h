// MoveWatch: what becomes of the moves of a plan, from status replies.
//
// Deterministic state machine without sockets or clocks. Thread-compatible.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/control.pb.h"

namespace slackline {

class MoveWatch {
 public:
  // `before` is a status from before the plan was ordered: the moves that it
  // lists as done are not the plan's.
  MoveWatch(const run::Plan& plan, const wire::StatusReply& before);

  // With a status from after the plan was ordered.
  void Update(const wire::StatusReply& status);

  // No move of the plan is under way or queued any more.
  bool Done() const { return updated_ && pending_ == 0; }
  // Of the plan's shards, in the order in which they were done. The coordinator
  // forgets old records, so some may be missing.
  const std::vector<run::MoveRecord>& moved() const { return moved_; }
  // A sentence for each move that the coordinator has given up, once Done().
  std::vector<std::string> Abandoned() const;
  // How many moves were done without a record here, once Done().
  int Unrecorded() const;
  // "12 of 30 moves done, 4 under way"
  std::string Line() const;

 private:
  bool Recorded(int32_t shard) const;

  std::map<int32_t, run::PlannedMove> planned_;  // By shard.
  std::set<std::string> seen_;                   // Records, serialized.
  std::vector<run::MoveRecord> moved_;
  wire::View view_;
  bool updated_ = false;
  int pending_ = 0;
  int under_way_ = 0;
};

}  // namespace slackline
