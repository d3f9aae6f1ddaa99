// A worker's own copy of everything that is trained: parameters, optimizer
// state, and the version of each shard. It steps by all-reduce, and takes the
// state from the servers and gives it back, bit for bit.
//
// Thread-compatible; the trainer thread's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/optim/update_rule.h"
#include "worker/client/client_core.h"
#include "worker/collective/collective.h"
#include "worker/collective/gradient_buckets.h"
#include "worker/core/catch_up.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/table_state.h"

namespace slackline {

class Replica {
 public:
  // The parameters are those of `parameters`, which outlive the replica.
  // Whatever is there counts until Initialize() or CopyIn(). Everything lies in
  // `memory`, like the parameters.
  static absl::StatusOr<std::unique_ptr<Replica>> Create(
      ParameterMemory* parameters, const LearningRateSchedule& schedule,
      int64_t bucket_bytes, std::unique_ptr<FloatMemory> memory,
      std::shared_ptr<const View> view);

  // Which way the gradients of each table go from the next step on, or the next
  // AddAgain(); at first all go among the ranks. The same on all ranks; those
  // by servers go among the ranks in a group without servers.
  absl::Status SetLanes(const std::vector<Lane>& lanes);

  // The state at clock 0, as every shard makes it; or tables that begin with
  // what a worker has, as they are, with the optimizer at `states` if there are
  // any, one for each table and fit for it (CheckTableStates()).
  absl::Status Initialize(uint64_t seed, absl::Span<const TableState> states);
  // The replica becomes the state that the servers have. `pulled` is of
  // PullState().
  absl::Status CopyIn(const PullResult& pulled);
  // A copy of what the optimizer keeps of each table.
  absl::StatusOr<std::vector<TableState>> State();
  // A copy of one shard, as `view` splits it.
  absl::StatusOr<ShardValue> CopyOut(const View& view, ShardId shard);
  // ModelHash() over the shards as they were before any was split in two: ranks
  // with different views get the same.
  absl::StatusOr<uint64_t> Hash(const View& view);
  // Bytes of parameters and optimizer state.
  int64_t bytes() const;

  // One step: StartStep(), Add() once for each table, FinishStep(). All or
  // nothing: if the group fails, parameters and state are as before.

  // Nothing of the step before is in flight any more.
  void StartStep();
  // The gradient of one table at the present parameters, in the replica's
  // memory, tables in any order. Its sum over the group begins meanwhile. Here,
  // the mean is applied with these options, which are allowed (FaultOf()) and
  // fit the table's optimizer; ranks stay equal if they give the same ones.
  // Errors as GradientBuckets::Add().
  absl::Status Add(Collective& group, TableId table, const Payload& gradient,
                   const StepOptions& options);
  // In place of Add(): the table keeps values and state in this step. Its
  // buckets are summed all the same, so that all ranks sum the same ones.
  absl::Status Skip(Collective& group, TableId table);
  // What was added to a step whose group has failed, once more, to another
  // group: instead of StartStep() and Add().
  absl::Status AddAgain(Collective& group);
  // Whether every table was added to the step.
  bool Complete() const { return own_.size() == slots_.size(); }

  struct StepResult {
    double wait_seconds = 0;  // For all-reduce, after the computation.
    // The sum of the gradients has a NaN or an infinity. It was applied
    // nowhere: parameters and state are as before. Every rank of the group is
    // told the same, because every rank has the same sum.
    bool nonfinite = false;
    // Whose gradient has one; none if they are finite and their sum is not.
    std::vector<Rank> culprits;
  };
  // Waits for the sums and applies their mean, as the step of `clock`. With an
  // error, `*group_failed`
  // tells whether it is the group that failed. The gradients are kept until the
  // next step: who is to blame for a bad one is found out only when the sum was
  // looked at.
  absl::StatusOr<StepResult> FinishStep(Collective& group, Clock clock,
                                        bool* group_failed) {
    return Finish(group, clock, std::nullopt, group_failed);
  }
  // FinishStep() where not every rank has a gradient: the mean is over the
  // ranks that say `counts`, with the options of the lowest one; without any
  // the step changes nothing. The ranks tell each other.
  absl::StatusOr<StepResult> FinishStepOfSome(Collective& group, Clock clock,
                                              bool counts, bool* group_failed) {
    return Finish(group, clock, counts, group_failed);
  }

  // A gradient of zeros of every table, for a step in which this rank does not
  // count.
  absl::Status AddNothing(Collective& group);

  // Each rank tells where it is, and they do as PlanCatchUp() says:
  // those that are behind get the state of one who is not. After an error
  // `*group_failed` tells whether it is the group that failed, and then nothing
  // has changed here.
  struct CaughtUp {
    Clock clock = 0;  // All have it.
    bool took_state = false;
  };
  absl::StatusOr<CaughtUp> CatchUp(Collective& group, const Standing& standing,
                                   bool* group_failed);

 private:
  // What was added to the present step.
  struct Gradient {
    TableId table{};
    Payload values;
    StepOptions options = {};
    bool skipped = false;
  };
  absl::Status Add(Collective& group, Gradient gradient);
  // Zeros, of the table's size, in the replica's memory.
  absl::StatusOr<Payload> ZerosOf(TableId table);
  Replica(ParameterMemory* parameters, std::vector<UpdateRule> rules,
          std::unique_ptr<FloatMemory> memory,
          GradientBuckets::Options bucket_options, GradientBuckets buckets,
          std::shared_ptr<const View> view);
  struct Range {  // One shard's memory.
    absl::Span<float> values;
    std::vector<absl::Span<float>> slots;
  };
  Range RangeOf(TableId table, const Region& region);
  absl::StatusOr<ShardValue> CopyOf(TableId table, const Region& region,
                                    Version version);
  Version VersionOf(const View& view, ShardId shard) const;
  absl::StatusOr<StepResult> Finish(Collective& group, Clock clock,
                                    std::optional<bool> counts,
                                    bool* group_failed);
  // How many ranks count. Gives our gradients the lowest one's options.
  absl::StatusOr<int> AgreeWhoCounts(Collective& group, bool counts,
                                     bool* group_failed);
  absl::Status Apply(const Gradient& own, float scale, Clock clock);
  // Which ranks have a gradient with a NaN or an infinity.
  absl::StatusOr<std::vector<Rank>> FindCulprits(Collective& group,
                                                 bool* group_failed);
  // Numbers of the host through the operation that `start` begins.
  absl::Status Exchange(
      Collective& group, absl::Span<float> numbers, bool* group_failed,
      const std::function<Collective::Ticket(absl::Span<float>)>& start);
  // Not OK: the group has failed.
  static absl::Status Wait(Collective& group,
                           absl::Span<const Collective::Ticket> tickets,
                           bool* group_failed);

  ParameterMemory& parameters_;
  const std::vector<UpdateRule> rules_;  // By table.
  const std::unique_ptr<FloatMemory> memory_;
  GradientBuckets::Options bucket_options_;
  GradientBuckets buckets_;
  std::shared_ptr<const View> view_;  // How versions_ are split.
  std::vector<std::vector<FloatMemory::Array>> slots_;  // By table, slot.
  std::vector<Version> versions_;                       // By shard.
  std::map<TableId, FloatMemory::Array> zeros_;         // Made when used.
  // This worker's gradients of the present step.
  std::vector<Gradient> own_;
  // The group's operations of the present step.
  std::vector<Collective::Ticket> tickets_;
};

}  // namespace slackline
