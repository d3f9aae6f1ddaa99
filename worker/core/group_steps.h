// GroupSteps: a worker's steps by all-reduce, and the group in which it does
// them: whom it connects to, what of its step the group has, whose gradients
// were at fault, how often connecting may fail, and when the loss of a group is
// said.
//
// | state of the worker | comes with | ends with |
// | --- | --- | --- |
// | connects | ConnectTo() | OnCaughtUp(), or OnConnectFailed() |
// | computes its part of a step | BeginStep() | OnComputed() |
// | waits for the sum | OnComputed() | the step is done, or OnLost() |
//
// A group that is lost while only the sum was missing does not cost the
// gradients: HasComputed() says that they are there for the same step in the
// next group. Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/view/shard_map.h"
#include "worker/core/catch_up.h"
#include "worker/core/worker_actions.h"

namespace slackline {

class GroupSteps {
 public:
  // Begins by all-reduce. `own_values`: as in Standing.
  void BeginWith(bool own_values) { own_values_ = own_values; }

  // ---- The group

  // The view's group, of which worker `self` is one, is the worker's from here
  // on.
  worker_action::Connect ConnectTo(const View& view, Rank self, absl::Time now);
  // The group of the last ConnectTo().
  uint64_t group() const { return group_; }
  bool IsOf(const View& view) const { return view.proto().group() == group_; }
  // Why nothing that is under way in the group of this number can end; OK: it
  // is the view's.
  static absl::Status WhyOver(uint64_t group, const View& view);
  // What the worker tells the group when it is connected.
  Standing StandingAt(Clock clock) const {
    return {.clock = clock, .own_values = own_values_};
  }
  // All of the group have one state.
  void OnCaughtUp();
  // Connecting has failed. True: it is given up, since enough attempts in a row
  // have failed; not as long as they may fail because of a server or a worker
  // that has died and whose lease has not run out.
  bool OnConnectFailed(absl::Time now, absl::Duration lease);
  int failed_connects() const { return failed_connects_; }  // In a row.

  // ---- A step

  void BeginStep() { is_computed_ = false; }
  // The worker has its part of the step. `again`: should the sum fail, the same
  // part counts in the next group.
  void OnComputed(Clock clock, bool again);
  // The worker waits for the others' parts.
  bool waits_for_sum() const { return is_computed_; }
  // The worker's part of this step is there, at the state that it has.
  bool HasComputed(Clock clock) const { return computed_ == clock; }
  // The worker takes another state, from the servers.
  void ForgetComputed() { computed_ = -1; }

  // Whose gradients had a NaN or an infinity, as ranks of workers, and a
  // sentence on it without its end.
  struct Culprits {
    std::vector<int32_t> workers;
    std::string what;
  };
  Culprits CulpritsOf(const worker_action::Reduced& step, Clock clock) const;

  // ---- Its loss. It may be no more than the end of the job, which others may
  // have heard of before, so the log waits for a moment.

  // The group was lost at this clock.
  void OnLost(Clock clock, const absl::Status& why, absl::Time now);
  // When TakeLoss() has to be said; InfiniteFuture: there is none.
  absl::Time tell_at() const { return tell_lost_at_; }
  // What is to be said of the last loss, once.
  std::optional<std::string> TakeLoss();

 private:
  uint64_t group_ = 0;  // 0: none so far.
  std::vector<int32_t> ranks_;
  bool own_values_ = false;  // As in Standing.
  bool is_computed_ = false;
  // The step of which the worker's part is computed, at the state that it has
  // now; -1: none.
  Clock computed_ = -1;
  int failed_connects_ = 0;      // In a row.
  absl::Time connecting_since_;  // The last attempt.
  absl::Time failing_since_;     // The first of those that failed, if any.
  std::string loss_;             // Empty: none, or it was told.
  absl::Time tell_lost_at_ = absl::InfiniteFuture();
};

}  // namespace slackline
