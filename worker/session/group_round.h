// GroupRound: steps by all-reduce. It has this worker's replica and its group,
// connects to the others, and performs the actions of the core that need no
// program: the state goes from the servers to the replica and back, and from
// one worker to another.
//
// A group that fails costs the step that is under way in it: the core is told,
// and says what comes next. Gradients that were all there count in the next
// group. The trainer thread is its only one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/config/cluster_config.h"
#include "common/optim/schedule.h"
#include "common/timeline/recorder.h"
#include "worker/collective/collective.h"
#include "worker/collective/server_sums.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/coordinator_store.h"
#include "worker/session/lanes.h"
#include "worker/session/replica.h"
#include "worker/session/run_report.h"
#include "worker/session/session.h"
#include "worker/session/step_round.h"
#include "worker/session/worker_loop.h"

namespace slackline {

class GroupRound : public StepRound {
 public:
  // Everything outlives it.
  struct Options {
    const Session::Options& session;
    const WorkerProcess& self;
    const LearningRateSchedule& schedule;
    const Lanes& lanes;
    Transport& to_shard_threads;
    TimelineRecorder& timeline;
  };
  // `counts` is told of each step that counts.
  GroupRound(const Options& options, ParameterMemory* parameters,
             WorkerLoop* loop, RunReport* report,
             std::function<void(const End&)> counts);
  ~GroupRound() override;

  StepKind kind() const override { return StepKind::kAllReduce; }
  bool on_device() const override { return parameters_.gpu().has_value(); }
  // Backward ends with the first table, so sums begin at once.
  bool last_table_first() const override { return true; }
  absl::Status Add(Clock clock, TableId table, const Payload& gradient,
                   const StepOptions& options) override;
  absl::Status Skip(TableId table) override;
  absl::Status Finish(const End& step) override;

  // The worker's own state; null where the servers have all of it.
  Replica* replica() { return replica_.get(); }
  // The servers have the state now, or have it still.
  void ForgetReplica() { replica_ = nullptr; }

  // Actions of the core. Not OK: the worker cannot go on.

  // `initial`: the optimizer's state where it does not begin anew.
  absl::Status Initialize(absl::Span<const TableState> initial);
  absl::Status Perform(const WorkerCore::TakeState& action);
  absl::Status Perform(const WorkerCore::ReadState& action);
  absl::Status Perform(const WorkerCore::Connect& action);
  absl::Status Perform(const WorkerCore::CatchUp& action);
  absl::Status Perform(const WorkerCore::LeaveGroup& action);
  // What WorkerCore::Reduce asks for. Begin() begins a step of the program; the
  // others do one without it, since it has done its part or has none.
  void Begin() { replica_->StartStep(); }
  absl::Status ReduceAgain();
  absl::Status ReduceNothing(Clock clock);

  // The step that is under way in the group is lost: drops the group and tells
  // the core.
  void Lose(const absl::Status& why);
  // Drops the group. With an error the others notice that this worker goes.
  void Drop(const absl::Status& why);

 private:
  absl::Status MakeReplica();
  ServerSumsOptions SumsOptions(uint64_t group_of_sums) const;
  absl::Duration WaitMax() const {
    return absl::Milliseconds(config_.limits().wait_timeout_ms());
  }

  const Options options_;
  const config::ClusterConfig& config_;
  ParameterMemory& parameters_;
  WorkerLoop& loop_;
  RunReport& report_;
  const std::function<void(const End&)> counts_;
  CoordinatorStore store_;
  std::unique_ptr<Replica> replica_;
  std::unique_ptr<Collective> group_;
  std::thread retired_;  // Ends with the end of the group before.
  End reducing_;         // The step that the replica has gradients of.
};

}  // namespace slackline
