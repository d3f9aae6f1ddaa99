// Removals: how often in a row a worker was removed for holding others up, and
// did no step before that. What it waits for stays as it is then, for example a
// server behind a firewall, and it would join and be removed for ever.
#pragma once

#include <cstdint>

namespace slackline {

class Removals {
 public:
  static constexpr int kInARowMax = 3;

  // A life of the worker has ended after `steps` steps; `removed`: because the
  // coordinator removed it for another reason than its lease.
  void OnLifeEnded(bool removed, int64_t steps) {
    in_a_row_ = removed && steps == 0 ? in_a_row_ + 1 : 0;
  }
  int in_a_row() const { return in_a_row_; }
  // It is not to join again.
  bool IsInVain() const { return in_a_row_ >= kInARowMax; }

 private:
  int in_a_row_ = 0;
};

}  // namespace slackline
