// ServedShard: one shard on the thread that owns it, and all that is only there
// while it does: the pulls that wait for clocks, the order of its updates with
// what rules for stale gradients remember, and its state at a checkpoint's cut.
//
// Requests become records of the shard's log, and Commit() is the only place
// where the shard changes. It knows no view: what the view says of a step comes
// with each request; nor who reads its log (ShardFeeds). What a call leads to
// is left in Effects, for the caller to do before anything else happens to the
// shard.
//
// Deterministic state machine: the time goes in; no sockets, threads, clocks or
// randomness. Thread-compatible; the shard thread is its only caller. A copy
// shares the tensors until one of the two changes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/checkpoint/shard_state.h"
#include "common/sync/staleness_gate.h"
#include "proto/data.pb.h"
#include "server/shard/shard_counts.h"
#include "server/shard/shard_cut.h"
#include "server/shard/shard_effects.h"
#include "server/shard/shard_machine.h"
#include "server/shard/update_order.h"

namespace slackline {

class ServedShard {
 public:
  // Equal for all shards of a table, and fixed for the job.
  struct Rules {
    std::string table;  // Its name.
    wire::Encoding::Kind pulled_as = wire::Encoding::FLOAT32;
    std::shared_ptr<PayloadMemory> memory;
    bool trace = false;
  };

  // A pull that is answered now, with what it is told.
  struct Answer {
    GatedPull pull;
    Clock shard_clock = 0;
    Version version = 0;
    Payload values;
    // How the values are written; absent: as they are.
    std::optional<wire::Encoding::Kind> kind = {};
    // Slots and hash are only for a pull of the state.
    std::vector<Payload> slots = {};
    uint64_t hash = 0;
  };
  // A pull that was parked before has been asked for again. It waits for this
  // worker to complete this clock; nullopt: nobody is known to be awaited.
  struct StillParked {
    GatedPull pull;
    std::optional<std::pair<Rank, Clock>> waits_for = {};
  };
  struct Effects {
    std::vector<Answer> answers;  // They are to be sent in this order.
    std::optional<StillParked> still_parked;
    std::vector<ShardTraceRecord> trace;  // Empty unless Rules::trace.
    std::vector<ShardWork> work;
    bool report = false;  // ShardEffects::report.
    // What the shard is at the cut that was under way, and is no more.
    std::optional<ShardState> at_cut;
    // Why there will be no state at the cut, which is under way no more.
    absl::Status cut_lost;
    // What the store could not do: the shard is of no more use, and nothing
    // else counts.
    absl::Status failure;

    void Clear();
  };
  // What a call takes from its caller, and where it leaves what it does.
  struct Call {
    absl::Time now;
    Clock end = 0;      // All clocks of the job are before it: EndOf().
    bool sums = false;  // Whoever reads the log wants the sums of updates.
    // The log has this record more, with this outcome; machine() is as it is by
    // it.
    absl::FunctionRef<void(const ShardRecord&, const ShardOutcome&)> log;
    ShardCounts& counts;
    Effects& effects;
  };

  // The owner's term begins with this machine.
  ServedShard(std::shared_ptr<const Rules> rules, ShardMachine machine,
              uint64_t term);

  const ShardMachine& machine() const { return machine_; }
  const StalenessGate& gate() const { return gate_; }
  const ShardRange& range() const { return machine_.shard().range(); }
  // nullptr if this worker does not take part.
  const Participant* Find(const WorkerLife& who) const {
    return machine_.participants().Find(who.rank, who.incarnation);
  }

  // ---- Requests of workers. A refusal says why nothing was done.
  struct Pushed {
    std::optional<wire::Refusal> refusal;
    // All pushes of the worker up to this one have been accepted.
    uint64_t accepted_seq = 0;
  };
  struct PushTerms {
    const sync::Mode& mode;  // The push's clock is in a phase of this mode.
    // The worker's view is newer than that of this thread, and may have split
    // the shard in two.
    bool may_be_split = false;
  };
  // A gradient, or the word that there is none. `frame` is the gradient's.
  Pushed Push(const WorkerLife& who, const wire::Push& push,
              const Payload& frame, const PushTerms& terms, const Call& call);
  struct InstallTerms {
    bool ends_all_reduce = false;     // A phase by all-reduce ends there.
    std::vector<WorkerLife> members;  // The workers of the view.
    bool may_be_split = false;        // PushTerms::may_be_split.
  };
  // A worker hands the shard back, after steps by all-reduce.
  Pushed Install(const WorkerLife& who, const wire::Push& push,
                 absl::Span<const Payload> frames, const InstallTerms& terms,
                 const Call& call);
  using PullTerms = UpdateOrder::PullTerms;
  // A pull of this shard, which is answered now, or parked until it can be. A
  // worker that does not take part joins with it, if it says so.
  // `asked` is as that of GatedPull.
  std::optional<wire::Refusal> Pull(
      const WorkerLife& who, const std::shared_ptr<const wire::Pull>& asked,
      const PullTerms& terms, const Call& call);
  // Parks nothing any more; returns what was parked, in parking order.
  std::vector<GatedPull> TakeParked() { return gate_.TakeParked(); }

  // ---- What a view does.
  // These take part no more.
  void Leave(LeaveRecord leave, const Call& call);
  // Keeps the elements before `at`; returns the rest, as the shard `part`.
  // nullopt: Effects::failure says why not.
  std::optional<ShardMachine> SplitAt(int64_t at, ShardId part,
                                      const Call& call);

  // ---- The checkpoint's cut.
  void BeginCut(std::shared_ptr<const CutLimits> limits) {
    cut_.emplace(std::move(limits));
  }
  void DropCut() { cut_.reset(); }
  // nullptr if none is under way.
  const ShardCut* cut() const { return cut_.has_value() ? &*cut_ : nullptr; }
  // The shard at the cut that is under way, if that is complete; the cut is
  // under way no more then.
  std::optional<ShardState> TakeAtCut();

  // The machine of a shard that has gone, once.
  ShardMachine TakeMachine() { return std::move(machine_); }

 private:
  // The last step of a worker whose lead was counted.
  struct LeadCounted {
    Incarnation incarnation = 0;
    Clock clock = -1;
  };
  // Values as several workers pull them, made once.
  struct Rounded {
    Version version = 0;
    Payload values;
  };
  // A push that is next: its record, and what is traced of it.
  struct Accepted {
    ShardRecord record;
    ShardTraceRecord cause;
  };

  // The store has failed, so that nothing of the shard may be asked any more.
  // Says so in the effects.
  bool HasFailed(const Call& call) const;
  // Applies the record, tells those who copy the shard, counts and traces what
  // it did, and answers the pulls that it lets go. `cause` is traced before its
  // updates; the smallest clock is filled in. Does nothing once the store has
  // failed.
  ShardOutcome Commit(const ShardRecord& record,
                      const std::optional<ShardTraceRecord>& cause,
                      const Call& call);
  std::optional<wire::Refusal> Accept(const wire::Push& push,
                                      const Payload& frame,
                                      const Participant& participant,
                                      const sync::Mode& mode, const Call& call);
  // Why the gradient is none of this shard's; empty: it is one.
  std::string FaultOf(const wire::Push& push, const Payload& frame,
                      const Participant& participant,
                      const sync::Mode& mode) const;
  void Advance(const wire::Push& push, const Participant& participant,
               const Call& call);
  // Looks at the gradient before it can get anywhere: at its numbers, its size,
  // and whether its order has use for it. Counts it.
  Accepted Judge(const wire::Push& push, const Payload& gradient,
                 const Participant& participant, const sync::Mode& mode,
                 UpdateOrder& order, const Call& call);
  // What has become of a gradient in its turn.
  void Count(const TurnVerdict& verdict, const Call& call) const;
  std::optional<wire::Refusal> TakeInstallation(
      const WorkerLife& who, const wire::Push& push,
      absl::Span<const Payload> frames, const InstallTerms& terms,
      const Call& call);
  // The pull with the clocks that it waits for.
  GatedPull Gated(const WorkerLife& who,
                  const std::shared_ptr<const wire::Pull>& asked,
                  const PullTerms& terms, const Call& call);
  // `changed` is as that of StalenessGate::Release().
  void ReleaseParked(std::optional<Rank> changed, const Call& call);
  void AnswerPull(GatedPull gated, const Call& call);
  // The values as steps get them: Table::pulled_as.
  Payload RoundedOf(const ShardVersion& told);
  // A name for messages to people, as View::ShardName().
  std::string Name() const;

  std::shared_ptr<const Rules> rules_;
  ShardMachine machine_;
  absl::Status failure_;  // What the store could not do.
  StalenessGate gate_;
  UpdateOrders orders_;
  // Each worker's last counted lead; begins anew wherever the shard gets.
  absl::flat_hash_map<Rank, LeadCounted> leads_;
  // The present cut, until it is complete here.
  std::optional<ShardCut> cut_;
  // The values of the last answer that was rounded, until the shard changes.
  std::optional<Rounded> rounded_;
};

}  // namespace slackline
