// Barriers: calls that are answered once every live worker that is not done has
// entered the barrier of that name.
//
// A barrier that all have passed is remembered for a while: a worker that
// repeats its call because the answer was lost, or joins late, passes at once.
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/membership.h"

namespace slackline {

class Barriers {
 public:
  // Over all barriers.
  explicit Barriers(int waiting_max) : waiting_max_(waiting_max) {}

  // Waits, unless it is answered at once: passed already, refused because of
  // its name, or too many wait.
  void Enter(const Member& worker, uint64_t call_id, const std::string& name,
             CoordinatorEffects* effects);
  // Answers the barriers that all of `workers` have entered. Call it after
  // Enter(), and when a worker is gone or done.
  void Complete(const std::map<int32_t, Member*>& workers,
                CoordinatorEffects* effects);
  // Who is gone waits for nothing.
  void Forget(Incarnation incarnation);

  size_t open() const { return barriers_.size(); }
  int waiting() const { return waiting_; }

 private:
  struct Waiting {
    PeerId from;
    uint64_t call_id = 0;
  };
  // By name, then by who has entered. A worker waits once at a barrier.
  std::map<std::string, std::map<Incarnation, Waiting>> barriers_;
  std::deque<std::string> passed_;  // The last ones, oldest first.
  int waiting_ = 0;
  const int waiting_max_;
};

}  // namespace slackline
