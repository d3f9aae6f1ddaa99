// One shard as a state machine that only its log changes: values, optimizer
// slots, version; who takes part, their clocks and sequence numbers; the
// gradients that wait (AcceptedGradients); and the running size of those that
// were applied.
//
// Apply() is the only way in which it changes: while it is served, at the
// target of a hand-over, after a restore. Two machines that begin with the same
// snapshot and apply the same records are equal to the last bit.
//
// No I/O, threads, time or randomness. Thread-compatible; references to tensors
// may be dropped on any thread. A copy shares the tensors until one of the two
// changes.
#pragma once

#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "common/optim/gradient_bound.h"
#include "common/sync/participants.h"
#include "server/shard/accepted_gradients.h"
#include "server/shard/given_turns.h"
#include "server/shard/held_by_clock.h"
#include "server/shard/shard.h"
#include "server/shard/shard_record.h"
#include "server/shard/shard_snapshot.h"

namespace slackline {

struct ShardOutcome;

// How a record is applied. The shard becomes the same with any.
struct ApplyOptions {
  PayloadMemory& memory;  // What the shard is afterwards is made in it.
  bool sums = false;      // ShardOutcome::Update::sum is of use.
};

class ShardMachine {
 public:
  // `rule` is that of the shard's table. Nobody takes part, the clock is 0, and
  // the job's delays are not given.
  ShardMachine(std::shared_ptr<const TableRule> rule, Shard shard);
  // The shard of a snapshot, which was checked (shard_codec.h) and has turns if
  // the rule has delays. Errors are those of the store.
  static absl::StatusOr<ShardMachine> Create(
      std::shared_ptr<const TableRule> rule, const ShardRange& range,
      ShardSnapshot snapshot);

  // InvalidArgument: the record does not fit the shard as it is, and nothing
  // has changed. Other errors are those of the store: the shard is of no more
  // use then.
  absl::StatusOr<ShardOutcome> Apply(const ShardRecord& record,
                                     const ApplyOptions& options);
  // Apply() in memory of the heap.
  absl::StatusOr<ShardOutcome> Apply(const ShardRecord& record);

  ShardSnapshot Snapshot() const;

  // After each record that was applied its index is larger by one; a part that
  // is split off goes on from it, too.
  const LogPosition& position() const { return position_; }
  // The shard has another owner from here on; `term` is larger than before.
  void BeginTerm(uint64_t term) { position_.term = term; }

  const std::shared_ptr<const TableRule>& rule() const { return rule_; }
  const Shard& shard() const { return shard_; }
  const Participants& participants() const { return participants_; }
  // Clocks below it are complete and applied, but for gradients that wait for
  // their turn because delays are given. The smallest clock of a participant;
  // in BACKUP, and after it, perhaps a larger one.
  Clock complete_clock() const { return complete_clock_; }
  // Gradients that are not in the values yet.
  const AcceptedGradients& accepted() const {
    return std::visit(
        [](const auto& of) -> const AcceptedGradients& { return of; },
        accepted_);
  }
  // Gradients held for complete_clock(), in the order in which they came.
  absl::Span<const HeldGradient> held() const { return accepted().held(); }
  // The turns, if the job's delays are given; else nullptr.
  const GivenTurns* turns() const {
    return std::get_if<GivenTurns>(&accepted_);
  }
  size_t waiting_count() const { return accepted().size(); }
  // The running mean of the gradients that were applied and measured since
  // somebody else's values were installed last. Those of one clock count in the
  // order of their ranks, once the clock is complete.
  const RunningRms& running_rms() const { return running_rms_; }

 private:
  absl::StatusOr<ShardOutcome> Take(const JoinRecord& join,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const GradientRecord& push,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const SumRecord& record,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const AdvanceRecord& advance,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const InstallRecord& install,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const LeaveRecord& leave,
                                    const ApplyOptions& options);
  absl::StatusOr<ShardOutcome> Take(const SplitRecord& split,
                                    const ApplyOptions& options);
  using Accepted = std::variant<HeldByClock, GivenTurns>;
  // What the mode of the job has a shard accept, as the snapshot has it.
  static Accepted AcceptedOf(const std::shared_ptr<const TableRule>& rule,
                             ShardSnapshot snapshot);
  AcceptedGradients& mutable_accepted() {
    return std::visit([](auto& of) -> AcceptedGradients& { return of; },
                      accepted_);
  }
  AcceptedGradients::Present Present() const {
    return {.shard = shard_,
            .participants = participants_,
            .running_rms = running_rms_};
  }
  // Applies all that is due by now.
  absl::Status Complete(const ApplyOptions& options, ShardOutcome* outcome);
  absl::Status Update(DueUpdate due, const ApplyOptions& options,
                      ShardOutcome* outcome);

  std::shared_ptr<const TableRule> rule_;
  Shard shard_;
  Participants participants_;
  Clock complete_clock_ = 0;
  LogPosition position_;
  RunningRms running_rms_;
  Accepted accepted_;
};

// What a record has done, for those who count, answer and trace.
struct ShardOutcome {
  struct Update {
    Clock clock = 0;
    Version version = 0;                 // The one that it reached.
    absl::InlinedVector<Rank, 1> ranks;  // Whose gradients, in their order.
    int workers = 0;   // The number that one clock was divided by.
    size_t bytes = 0;  // What the gradients have, or their sum.
    // The sum of several held gradients, if it was asked for.
    Payload sum = {};
  };
  absl::InlinedVector<Update, 1> updates;
  // What has become of the gradients whose turn has come, in that order.
  std::vector<TurnVerdict> turned;
  // Held gradients whose clock somebody else's installation has replaced.
  int replaced = 0;
  std::optional<ShardMachine> part;  // The shard that was split off.
};

}  // namespace slackline
