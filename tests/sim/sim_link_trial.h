// SimLinkTrial: what common/net/link_trial.h does with sockets: tries to
// connect to the servers that a member of a job that forms was told of, over
// and over, and says which it has not been connected with so far.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "common/ids.h"
#include "proto/control.pb.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/sim_context.h"

namespace slackline::sim {

class SimLinkTrial {
 public:
  // `say` is called with what has come of it so far, whenever that changes.
  SimLinkTrial(SimContext* context, SimMachine* machine, PeerId self,
               std::function<void(const wire::LinksTried&)> say)
      : context_(context),
        machine_(machine),
        self_(self),
        say_(std::move(say)) {}

  void Begin(const wire::TryLinks& links);
  // The job runs.
  void End();
  // It was asked, and has been connected with all since then.
  bool complete() const { return round_ != 0 && left_.empty(); }

 private:
  using Thread = std::pair<int32_t, int32_t>;  // Server, thread.

  void LookAfter(absl::Duration delay);
  void Look();

  SimContext* const context_;
  SimMachine* const machine_;
  const PeerId self_;
  const std::function<void(const wire::LinksTried&)> say_;
  uint64_t round_ = 0;
  std::set<Thread> left_;
  std::optional<size_t> said_;  // How many were left.
  // Guards what is scheduled; another round has another one.
  std::optional<Lifetime> lifetime_;
};

}  // namespace slackline::sim
