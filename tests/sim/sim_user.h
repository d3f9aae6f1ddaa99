// A simulated user: looks at the job and asks the coordinator to move shards,
// to drain servers, to plan, to change the mode, to take checkpoints and to end
// early, and starts servers. Repeats what is not answered.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>

#include "tests/sim/sim_context.h"

namespace slackline::sim {

class SimUser {
 public:
  struct Counts {
    int64_t asked = 0;
    int64_t accepted = 0;
    int64_t refused = 0;
    int64_t drains = 0;  // Accepted.
    int64_t modes = 0;   // Likewise: changes of the mode.
    int64_t modes_refused = 0;
    int64_t modes_after_moves = 0;  // Accepted, to wait until they are done.
    int64_t early_ends = 0;         // Accepted.
    int64_t early_ends_refused = 0;
    int64_t checkpoints = 0;  // That they were told of.
    int64_t checkpoints_refused = 0;
    int64_t suspensions = 0;  // Asked for.

    void Add(const Counts& other);
  };

  // `add_server` starts a server of this index; false if it cannot.
  SimUser(SimContext* context, std::function<bool(int32_t index)> add_server);

  const Counts& counts() const { return counts_; }
  // The servers that are to leave, as they were told.
  const std::set<int32_t>& drained() const { return drained_; }
  // Nothing that was asked is without an answer.
  bool idle() const { return pending_.empty(); }

 private:
  struct Pending {
    wire::Call call;
    UserAction action;
    bool while_moving = false;  // Shards moved when it was asked for.
  };
  void Begin(const UserAction& action);
  void Ask(const wire::Call& call, const UserAction& action,
           bool while_moving = false);
  void Send(uint64_t call_id);
  void OnMessage(const Message& message);
  void Decide(const UserAction& action, const wire::StatusReply& status);

  SimContext* const context_;
  const std::function<bool(int32_t index)> add_server_;
  const PeerId self_;
  Rng rng_;
  uint64_t next_call_id_ = 1;
  std::map<uint64_t, Pending> pending_;  // By call id.
  std::set<int32_t> drained_;
  Counts counts_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
