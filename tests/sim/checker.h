// What must hold in every run (the invariants of the design), checked as it
// goes.
//
// The checker has a naive twin of every shard. It knows what each worker meant
// to send, sees what each shard thread was handed and what it answered, and
// computes in plain float arithmetic what every version of a shard must be. The
// gate's and the client's own numbers are never taken for granted: every answer
// that reaches a worker is compared bit for bit with the twin's version.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/shard_state.h"
#include "common/membership/member_core.h"
#include "common/view/shard_map.h"
#include "proto/checkpoint.pb.h"
#include "server/coordinator/coordinator_core.h"
#include "server/shard/shard_core.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_replica.h"
#include "worker/client/client_core.h"
#include "worker/core/worker_core.h"

namespace slackline::sim {

enum class Invariant {
  kStaleness,    // A pull was answered before the pushes that it must contain,
                 // or parked though they were there.
  kExactlyOnce,  // A push took effect more than once.
  kLostPush,     // A push was acknowledged and did not take effect.
  kOrder,  // Pushes of one worker took effect in another order, or with a gap.
  kTornRead,      // An answer is no single version of its shard.
  kVersionOrder,  // A worker was given another or an older version than is
                  // right.
  kExamples,      // Elastic sampling: an example was left out, or done twice by
                  // workers that live.
  kSyncSum,    // An update of BSP or BACKUP is not the mean over the gradients
               // of its clock that it has to be.
  kValue,      // Values that no sequence of the pushes gives.
  kMode,       // A worker or a shard is in another phase than its clock.
  kReplica,    // A worker's state by all-reduce is not what it must be.
  kOwnership,  // Two shard threads serve one shard, or the wrong one does.
  kCopies,     // A follower has not what it must have: copies at one place of
               // the log differ, or what somebody was told can be lost.
  kSentAgain,  // Somebody was sent a part of a log that it had, and nothing was
               // lost on the way there.
  kUnread,     // More is under way on one connection than its bound.
  kView,       // A member saw a view that was not published, or an older one.
  kBoundedState,  // A shard keeps state of workers that are gone, or parks too
                  // much.
  kLiveness,      // Somebody still waits long after the last fault.
  kGaveUp,        // A healthy worker gave up, and no fault explains it.
  kGathers,       // A collective gave workers different results, or wrong ones.
  kCheckpoint,    // One has other gradients than those before its cut, or is
                  // not whole; or the job begins otherwise than it says.
  kCoordinator,   // One cannot go on where the one before it was.
  kOutcome,       // The job ended otherwise than it had to.
};
const char* InvariantName(Invariant invariant);

struct Violation {
  Invariant invariant{};
  std::string what;
};

struct CheckerStats {
  int64_t answers = 0;  // Shard answers compared with the twin.
  int64_t gated = 0;    // Of those: where the bound had something to say.
  int64_t pushes = 0;   // Shard pushes accepted.
  int64_t updates = 0;
  int64_t given_updates = 0;  // Of those: in the turn that delays give.
  int64_t given_answers = 0;  // With an earlier version than the present one.
  int64_t joins = 0;          // To a shard, after the start of the job.
  int64_t advances = 0;
  int64_t skipped = 0;       // Steps without a gradient of the table.
  int64_t partial_sums = 0;  // BSP updates without a worker that had died.
  int64_t dropped = 0;       // Late gradients of BACKUP.
  int64_t without_some = 0;  // BACKUP updates that did not wait for all.
  int64_t beyond_low = 0;    // Answers beyond the smallest bound of DSSP.
  int64_t parked = 0;        // Parked pulls that had to wait.
  int64_t moves_ordered = 0;
  int64_t moves_done = 0;
  int64_t moves_cancelled = 0;  // The target had died.
  int64_t splits = 0;
  int64_t arrivals = 0;          // Compared with the twin.
  int64_t arrivals_held = 0;     // Of those: with gradients that were held.
  int64_t parts_compared = 0;    // After a split.
  int64_t waiting = 0;           // Requests that waited for a move.
  int64_t relocations = 0;       // That workers were told.
  int64_t dropped_server = 0;    // Views without a server that just died.
  int64_t changes_opened = 0;    // Without a clock at first.
  int64_t changes_dropped = 0;   // They never had one.
  int64_t ended_early = 0;       // Jobs that were given an earlier last clock.
  int64_t phases_entered = 0;    // By all.
  int64_t states_taken = 0;      // Compared with the twins.
  int64_t steps_reduced = 0;     // By all-reduce: in the job's model.
  int64_t steps_of_nobody = 0;   // Of them, without examples for anybody.
  int64_t steps_repeated = 0;    // Done anew by those who are left.
  int64_t groups = 0;            // That came to one clock.
  int64_t groups_apart = 0;      // Of those: some members were behind.
  int64_t installs = 0;          // Compared with the workers' state.
  int64_t installs_again = 0;    // Of shards that had it already.
  int64_t bases = 0;             // Versions of pushes that were compared.
  int64_t bases_missed = 0;      // Of those: there were newer ones already.
  int64_t too_stale = 0;         // Gradients that a rule did not let in.
  int64_t oversized = 0;         // Likewise: the bound.
  int64_t over_running = 0;      // Of those: that of the running size.
  int64_t broken_taken = 0;      // While no bound held yet.
  int64_t weakened = 0;          // Gradients or rates that a rule changed.
  int64_t histograms = 0;        // Compared.
  int64_t sizes = 0;             // Of coordinators and clients, compared.
  int64_t examples = 0;          // Of elastic jobs, found where they belong.
  int64_t examples_again = 0;    // Of those: of a worker that had died, too.
  int64_t examples_counted = 0;  // Jobs whose coordinator's count was compared.
  int64_t cuts = 0;              // In views.
  int64_t cuts_of_each = 0;      // Of those: of each worker's own clock,
  int64_t cuts_by_worker = 0;    // or of the workers' state.
  int64_t cuts_dropped = 0;      // Opened, and not for this job any more.
  int64_t cut_shards = 0;        // Compared with the twin.
  int64_t cut_copies = 0;        // Shards that went on beside their cut.
  int64_t cut_late = 0;     // Shards with updates before the cut behind others.
  int64_t states_kept = 0;  // By all-reduce, compared.
  int64_t programs_kept = 0;   // In checkpoints, compared,
  int64_t programs_begun = 0;  // and with those that jobs go on from.
  int64_t parts_written = 0;
  int64_t checkpoints = 0;  // Completed.
  int64_t checkpoints_of_each = 0;
  int64_t checkpoints_by_worker = 0;
  int64_t checkpoints_given_up = 0;
  int64_t stopped_after_last =
      0;  // Jobs to be suspended, while scripts worked.
  int64_t checkpoints_failed = 0;  // All parts were there.
  int64_t resumed_shards = 0;      // Compared.
  int64_t followers_ordered = 0;
  int64_t followers_in_sync = 0;  // Of those.
  int64_t copies_compared = 0;
  int64_t answers_confirmed = 0;  // That had to wait for followers.
  int64_t answers_held = 0;       // The most at one time.
  int64_t swaps = 0;              // Moves to a follower.
  int64_t failovers = 0;         // Of shards, that somebody has begun to serve.
  int64_t failovers_behind = 0;  // Of those: some of the log was lost.
  int64_t failovers_apart = 0;   // Or was another one than that of the last.
  int64_t records_lost = 0;
  int64_t deposed = 0;          // Events of owners that do not know it yet.
  int64_t copies_restored = 0;  // Jobs in which none was missing any more.
};

class Checker {
 public:
  explicit Checker(const Scenario& scenario);

  // The first thing that was wrong.
  const std::optional<Violation>& violation() const { return violation_; }
  // What happens from now on cannot be judged: a copy serves that has followed
  // an owner beyond the point where that was replaced. It may, since who
  // replaced it has told nobody anything without this copy; but what a replaced
  // owner does is not followed here.
  bool judges_no_more() const { return judges_no_more_; }
  // A server has discarded one of its gradients because of the bound.
  bool IsOversized(int32_t rank) const {
    return oversized_.count(Rank{rank}) > 0;
  }
  const CheckerStats& stats() const { return stats_; }
  void Report(Invariant invariant, const std::string& what);

  // The coordinator made this view; a member took it over.
  void OnPublished(const wire::View& view);
  // Somebody was told that it has joined; perhaps not for the first time.
  void OnJoined(bool server, int32_t index);
  void OnMemberView(const PeerId& member, const wire::View& view);
  // The view that the message brings, whole or as a change; nullopt: it brings
  // none.
  std::optional<wire::View> ViewIn(const wire::Header& header) const;

  // A worker's client has put this on its way.
  void OnSent(Rank rank, Incarnation incarnation, const Message& message);
  // This has reached a worker's client, before the client looks at it.
  void OnWorkerReceived(Rank rank, Incarnation incarnation,
                        const Message& message);
  void OnPulled(Rank rank, Incarnation incarnation,
                const ClientCore::PullResult& result);
  // Its first push will be that of `clock`.
  void OnStart(Rank rank, Incarnation incarnation, Clock clock);
  // The chief has read the final model.
  void OnFinalPull(const ClientCore::PullResult& result);

  // A worker begins the step of this clock.
  void OnStepBegun(Rank rank, Incarnation incarnation, Clock clock,
                   bool by_all_reduce,
                   const std::optional<ExampleRange>& examples);
  // A worker has the parameters of a table for the step of this clock.
  void OnParameters(Rank rank, Incarnation incarnation, Clock clock,
                    const ClientCore::TableValues& values);
  // By all-reduce: a worker has the initial state; or that of the servers at
  // `clock`; or shares it with its group, which is about to find its clock from
  // these shares, and then has one; or it has done a step and is at `clock`.
  void OnInitial(Rank rank, Incarnation incarnation, const SimReplica& state);
  void OnTookState(Rank rank, Incarnation incarnation, Clock clock,
                   const SimReplica& state);
  void OnShared(Rank rank, Incarnation incarnation, uint64_t group);
  void OnExchange(uint64_t group, const std::vector<SimGroup::Share>& shares);
  void OnCaughtUp(Rank rank, Incarnation incarnation, uint64_t group,
                  Clock clock, const SimReplica& state);
  void OnReduced(Rank rank, Incarnation incarnation, uint64_t group,
                 const std::vector<SimGroup::Share>& shares, Clock clock,
                 const SimReplica& state);
  // The chief reports what it has.
  void OnFinalReplica(Rank rank, Incarnation incarnation,
                      const SimReplica& state);

  // The process of a server begins, perhaps not the first one of its index.
  void OnServerStarts(int32_t server);
  // A shard thread did something, with these effects. `view` is what it was
  // handed, if that was a view.
  void OnShardEvent(Owner owner, const std::shared_ptr<const View>& view,
                    const ShardCore& core, const ShardCore::Effects& effects);
  void OnShardFlush(Owner owner, const ShardCore& core);
  // It sends this, after that.
  void OnShardSends(Owner owner, const std::vector<Outgoing>& sends);
  // Its process has ended.
  void OnServerGone(int32_t server);
  // The thread's figures, as they go into a heartbeat.
  void OnShardStats(Owner owner, const run::ServerStats& stats);
  // What the coordinator and a worker's client keep, after an event.
  void OnCoordinator(const CoordinatorCore::Sizes& sizes);
  void OnClient(Rank rank, Incarnation incarnation, const ClientCore& client,
                const MemberCore& member, const View& view);
  // The source of a move has sent the last record.
  void OnGo(int32_t shard, uint64_t move);

  // Bytes of the shards of a thread at this cut have got to the disk; or those
  // of a worker, which has kept `state` at `clock` for it.
  void OnPartWritten(Owner owner, const ShardCore::CutState& state);
  void OnKept(Rank rank, Incarnation incarnation, int32_t cut, Clock clock,
              const SimReplica& state);
  void OnKeptWritten(Rank rank, int32_t cut, const SimReplica& state);
  // A worker's program begins, with this of the checkpoint from which the job
  // goes on; and it is done with a step.
  void OnProgramBegins(Rank rank, Incarnation incarnation, bool founder,
                       const std::string& state);
  void OnProgramStep(Rank rank, Incarnation incarnation, Clock clock);
  // All parts of the cut are one checkpoint; or it could not be written.
  void OnCheckpoint(
      int32_t cut,
      const absl::StatusOr<std::shared_ptr<const SimCheckpoint>>& made);
  // The coordinator has given the cut up. `excuse` is why it had to; nullptr:
  // nothing has gone wrong.
  void OnGivenUp(int32_t cut, const char* excuse);
  // A user was told that there will be no checkpoint.
  void OnCheckpointRefused(const std::string& why);
  // The job has ended so, although a checkpoint was to be taken before, or
  // because it was.
  void OnSuspended(const wire::JobEnd& end);
  // The worker's script goes on after its last step.
  void OnWorkAfterLast(Rank rank, Incarnation incarnation) {
    worked_after_last_.insert({rank, incarnation});
  }
  // The view that has the cut; 0: none has.
  uint64_t ViewOfCut(int32_t cut) const;
  // By table: what the chief has read or reported. Empty: nothing.
  const std::vector<std::vector<float>>& final_model() const {
    return final_model_;
  }

  // The job has finished and every message has arrived.
  void OnFinished();
  // With elastic sampling: as many examples are done as the coordinator says,
  // if nobody has died, whose last ones nobody knows; of a job that is ended
  // early not fewer.
  void CheckExamplesDone(int64_t done);

  struct Move {
    Owner source;
    Owner target;
    bool go = false;         // Its source has said so.
    bool cancelled = false;  // Its target was lost.
  };
  // By shard and id: all that were ever ordered.
  const std::map<std::pair<int32_t, uint64_t>, Move>& moves() const {
    return moves_;
  }
  // The move that was done, so that the view of this number was made.
  const Move* DoneIn(uint64_t view_number) const;
  // The owners of a shard before and after the view of this number, which
  // replaces one that was lost; nullptr: it does not.
  const Move* FailoverIn(uint64_t view_number) const;
  // Followers that shards lack though there are servers for them, for people.
  std::string MissingCopies();
  // The last one published.
  const wire::View& latest_view() const { return latest_view_; }

 private:
  using Life = std::pair<Rank, Incarnation>;

  struct Participant {
    Clock joined_at = 0;
    Clock clock = 0;  // As its pushes and declarations make it.
    uint64_t next_seq = 1;
    bool present = true;  // In the last view that the shard thread was handed.
  };
  struct Contribution {
    Life life;
    Clock clock = 0;
    auto operator<=>(const Contribution&) const = default;
  };
  struct Update {
    std::vector<Contribution> contributions;  // In the order of the sum.
    int divisor = 1;
    bool held = false;  // It waited for the whole clock.
    bool by_all_reduce = false;
    Clock clock = 0;  // Whose learning rate it has.
    // What the rule for stale gradients made of a gradient and of its rate.
    float gradient_factor = 1;
    double rate_factor = 1;
    std::vector<Life> present = {};  // Unless held: the divisor counts them.
    std::vector<double> sizes = {};  // Of the contributions, with a bound.
  };
  using Tensor = std::vector<float>;
  using Versions = std::vector<Tensor>;
  // What workers have by all-reduce, at one clock of the job's one history.
  struct Model {
    Clock clock = 0;
    SimReplica state;
    std::shared_ptr<const Model> before;  // One step less.
    std::vector<Life> group;              // Whose gradients led here.
    uint64_t group_number = 0;
  };
  using ModelPtr = std::shared_ptr<const Model>;
  // What a twin is at one place of its log, without the tensors.
  struct TwinState {
    std::map<Life, Participant> participants;  // Those that are gone, too.
    // BSP and BACKUP: accepted in time, not applied yet.
    std::vector<Contribution> held;
    // What the last gradient that was accepted becomes.
    float gradient_factor = 1;
    double rate_factor = 1;
    // If the job has a bound: of the gradients that were applied; and the sizes
    // of those that are held, which are of the shard as it was when they came.
    RunningRms running_rms = {};
    std::map<Contribution, double> held_sizes = {};
    // Not applied by a rule, or skipped.
    std::set<Contribution> without_effect;
    Clock min_clock = 0;
    Clock complete = 0;  // Clocks below it are complete.
    Clock installed_at = -1;
  };
  // What anybody was told of a shard.
  struct Told {
    std::map<Life, uint64_t> accepted_seq;
    std::map<Life, Clock> joined_at;
    Version version = 0;
    Clock complete = 0;
  };
  struct Twin : TwinState {
    ShardRange range;
    std::string name;
    Versions versions;            // versions[0] is the initial one.
    std::vector<Versions> slots;  // By version, then slot.
    std::vector<Update> updates;  // updates[v] leads to version v + 1.
    RunningRms resumed_rms;       // As the job has begun.
    // What it was before it was cut in two by the view of this number.
    std::vector<std::pair<uint64_t, Versions>> before_split;
    int32_t origin = 0;          // What it was cut off from; else itself.
    std::optional<Owner> owner;  // Who serves it now.
    std::optional<Owner> last_owner;
    uint64_t newest_view = 0;  // That an owner of it has had.
    // If delays are given: by turns that are over, the version then; and the
    // gradients that wait for their turn.
    std::vector<Version> after_turns = {0};
    std::set<std::pair<Clock, Rank>> waiting;
    // By rank: the life and the last step whose lead its server has counted.
    std::map<Rank, std::pair<Incarnation, Clock>> leads;
    int32_t cut_done = 0;     // The last cut of which its owner has a state.
    bool cut_copied = false;  // Its owner has a copy for a cut just now.
    // ---- With replicas.
    uint64_t index = 0;  // Of its log, as in LogPosition.
    struct Logged {
      TwinState state;
      Version version = 0;
      // False: a record before it or behind it may be missing here or too much,
      // since views bring several at once.
      bool exact = true;
    };
    std::map<uint64_t, Logged> log;  // By index.
    // By term: the index from which on the log is that of its owner.
    std::map<uint64_t, uint64_t> terms;
    // What it was when it was cut in two, and when a follower began to serve it
    // that had another part of the log. A copy may still be that.
    std::vector<std::shared_ptr<const Twin>> earlier;
    int failovers = 0;
    uint64_t promoted_in = 0;         // The view by which the last one was.
    int32_t cut_before_failover = 0;  // The last cut by then.
    Told told;
  };
  // What a thread had of a shard when it was looked at last.
  struct Copy {
    LogPosition at;
    ShardRange range;
    bool served = false;  // Else it is followed.
    // Where it was as a part of another copy, until a view cut it off from that
    // because nobody would tell any more where its owner had.
    std::optional<std::pair<ShardRange, LogPosition>> cut_from = {};
  };
  // What a shard is at a cut.
  struct CutShard {
    std::string table;
    int64_t begin = 0;
    int64_t end = 0;
    Version version = 0;
    Tensor values = {};
    Versions slots = {};
    bool late = false;  // With updates that came behind some after the cut.
    RunningRms running_rms = {};
  };
  struct Cut {
    wire::Cut proto;
    uint64_t view_number = 0;  // The first view with it.
    std::set<Life> gone;       // By then: what they have pushed stays.
    bool given_up = false;
    bool completed = false;
    Clock clock = 0;  // Of the manifest, once it is completed.
    std::map<Owner, std::vector<CutShard>> parts;
    std::map<Rank, ModelPtr> kept;
    // Workers whose programs have to be in it, unless they die, and until
    // where.
    std::map<Life, Clock> programs;
  };
  struct PullIntent {
    Clock clock = 0;
    Clock own_clock = 0;
    bool join = false;
    bool state = false;
    bool exact = false;
    // By shard: versions, and the index of the log at which it was answered
    // first with that.
    std::map<int32_t, std::map<Version, uint64_t>> answered;
  };

  std::vector<float> GradientOf(const Twin& twin,
                                const Contribution& contribution,
                                bool by_all_reduce) const;
  // The size of a gradient, as servers see it; 0 without a bound.
  double SizeOf(const Twin& twin, const Contribution& contribution) const;
  // The sum of the update's gradients.
  Tensor SumOf(const Twin& twin, const Update& update) const;
  // The values after version `from` with these values; `*slots` becomes what
  // comes after.
  Tensor Apply(const Twin& twin, Version from, const Tensor& values,
               Versions* slots, const Update& update) const;
  // How the job synchronises at this clock, as far as anybody knows.
  const wire::Phase& PhaseOf(Clock clock) const;
  // The view by which a shard thread has to treat requests of that worker. A
  // live one waits until the shard knows the phases that it knows; what is left
  // of a dead one may get there before these.
  const wire::View& ViewFor(const Life& life, Owner owner) const;
  // The same for a gradient that the twin holds, which are of one clock.
  const wire::View& ViewForHeld(const Twin& twin, Owner owner) const;
  // Clocks of every worker that a pull of this clock must contain, with the
  // smallest bound or with the largest one; and how many must be complete.
  static Clock NeededClock(const wire::View& view, Clock clock,
                           bool largest_bound = true);
  static Clock NeededComplete(const wire::View& view, Clock clock);
  // Whether a clock of BACKUP of which the twin holds gradients is complete.
  static bool HasEnough(const Twin& twin, const wire::View& view);
  void CheckPhases(const wire::View& before, const wire::View& view);
  // A live worker asks for, or pushes, something of `clock`, and knows so many
  // phases.
  void CheckFence(const Life& life, Clock clock, int phases,
                  const std::string& what);
  // The worker's state, or nullptr after a report.
  ModelPtr ModelOf(const Life& life, const std::string& what);
  void CompareReplica(const Life& life, const Model& model,
                      const SimReplica& state, const std::string& when);
  // Every live worker has its part in every step that led to `last`.
  void CheckHistory(const ModelPtr& last);
  void CheckMoves(const wire::View& before, const wire::View& view);
  void CheckFailure(const wire::View& before, const wire::View& view);
  void CreateTwins(Owner owner, const View& view);
  void CreateTwin(int32_t id, const View& view);
  // Steps that the twin's shard owes nothing for.
  void AddWithoutEffect(const Twin& twin,
                        std::set<Contribution>* contained) const;
  // All examples of the job are in what `contained` led to, once, but for those
  // who died.
  void CheckExamples(const std::set<Contribution>& contained,
                     const std::string& where);
  // Cuts the twins of what this owner has. Appends their shards to `*changed`.
  void SplitTwins(Owner owner, const View& view, std::vector<int32_t>* changed);
  // `*whole` keeps what is before the cut; returns what becomes shard `id`.
  static Twin CutTwin(const View& view, const wire::Split& split, int32_t id,
                      Twin* whole);
  // What a worker has seen of a shard, it has seen of its new part.
  void InheritSeen(int32_t from, int32_t to);
  // Who takes part by now, after a view or a new owner.
  void FollowParticipants(Twin& twin, const View& view,
                          const ShardMachine& machine);
  // What an owner has is what it must have.
  void CompareState(const Twin& twin, const ShardMachine& machine,
                    const std::string& when);
  std::optional<Violation> Difference(const Twin& twin,
                                      const ShardMachine& machine) const {
    return Difference(twin, twin, twin.versions.size() - 1, machine);
  }
  // The same for what it was.
  std::optional<Violation> Difference(const Twin& twin, const TwinState& state,
                                      Version version,
                                      const ShardMachine& machine) const;
  void OnTrace(const ShardCore::Effects& effects,
               const std::set<int32_t>& served,
               const std::set<int32_t>& deposed, Owner owner,
               const ShardCore& core);
  void OnAdvanced(Twin& twin, const ShardTraceRecord& record, Owner owner);
  void OnInstalled(Twin& twin, const ShardTraceRecord& record,
                   const View& view);
  void OnPushAccepted(Twin& twin, const ShardTraceRecord& record, Owner owner);
  // By the rule for stale gradients: false if the gradient is not applied.
  bool JudgeStale(Twin& twin, int64_t missed_updates, int workers);
  int PresentCount(const Twin& twin) const;
  // ---- If delays are given.
  const DelayTrace::Shard& DelaysOf(const Twin& twin) const;
  // How many turns there are before that gradient is computed.
  size_t TurnsBefore(const Twin& twin, Rank rank, Clock clock) const;
  Clock CompleteAfter(const Twin& twin, size_t turns) const;
  // nullptr: no turn is left, or a gradient of it is missing.
  const DelayTrace::Update* ReadyTurn(const Twin& twin) const;
  // Whether the given delays use that gradient.
  bool HasTurn(const Twin& twin, Rank rank, Clock clock) const;
  void OnGivenPush(Twin& twin, const Life& life, Participant& participant,
                   const ShardTraceRecord& record, const std::string& who,
                   Owner owner);
  // Counts the delay of each gradient of the next turn; false if a rule drops
  // the only one.
  bool JudgeTurn(Twin& twin, const DelayTrace::Update& turn, Owner owner);
  void PassTurnsWithoutEffect(Twin& twin, Owner owner);
  void OnGivenUpdate(Twin& twin, const ShardTraceRecord& record, Owner owner);
  void AddUpdate(Twin& twin, Update update);
  // What a shard keeps for delays, no more than what is needed.
  void CheckKept(const Twin& twin, const GivenDelays& kept);
  void OnUpdated(Twin& twin, const ShardTraceRecord& record, Owner owner);
  // What waits at the shard has to wait.
  void CheckWaiting(const Twin& twin, const StalenessGate& gate, Owner owner);
  void OnPullAnswered(Twin& twin, const ShardTraceRecord& record, Owner owner);
  // ---- Followers.
  void CheckFollowers(const wire::View& before, const wire::View& view);
  // The server of `before` is in `view`, too.
  static bool Stays(const wire::View& before, const wire::View& view,
                    int32_t server);
  static bool Follows(const wire::View& view, int32_t shard, Owner owner);
  // By a move whose target has died since.
  bool WasGivenToTheLost(int32_t shard) const;
  // The owner in `view` has to be one in whose copy nothing is missing.
  void CheckHeir(const wire::View& before, const wire::View& view,
                 int32_t shard);
  // The shard has a follower in sync on a server that stays.
  static bool HasHeir(const wire::View& before, const wire::View& view,
                      int32_t shard);
  // The view gives the shard to somebody else than `server`, though no move of
  // it to there is under way.
  static bool Deposes(const View& view, int32_t shard, Owner owner);
  // It serves a shard that a view which it has not seen gives to another one.
  bool IsDeposed(int32_t shard, Owner owner) const;
  // A follower begins to serve the shard, because its view says so.
  void OnPromoted(Owner owner, int32_t shard, const View& view,
                  const ShardMachine& machine);
  // As the twin was when its log had come to this place; nullptr: it never was.
  std::shared_ptr<const Twin> TwinAt(const Twin& twin, const ShardRange& range,
                                     const LogPosition& at) const;
  // As it was before a view that cuts it more than once, of which the copy has
  // done the first cuts and no more; nullptr: it is not between two of them.
  static std::shared_ptr<const Twin> CutOnTheWay(const Twin& twin,
                                                 const View& view,
                                                 const ShardRange& range,
                                                 const LogPosition& at);
  // There an owner was that another one had replaced before.
  static bool HasFollowedTheReplaced(const Twin& twin, const LogPosition& at);
  // As it was before it was cut in two or changed its owner.
  static std::shared_ptr<const Twin> AtFirst(const Twin& twin);
  static bool IsOnLine(const Twin& twin, const LogPosition& at);
  static void Rewind(Twin& twin, uint64_t index);
  void CheckTold(const Twin& twin, const std::string& who);
  void LogState(Twin& twin, uint64_t index, bool exact);
  // Before and after the trace of an event after which the shard is there.
  void BeginLogging(Twin& twin, const View& view, const LogPosition& after);
  void EndLogging(Twin& twin, const LogPosition& after);
  void OnTraceOfDeposed(const ShardTraceRecord& record, const ShardCore& core);
  // What the thread has of shards, served and followed.
  void FollowCopies(Owner owner, const ShardCore& core);
  void CompareCopy(Owner owner, int32_t shard, const ShardMachine& machine);
  // Those that may come to serve the shard, besides who does.
  std::vector<Owner> WhoMustHave(int32_t shard, Owner server) const;
  // nullptr: it has none. Perhaps of the shard before it was cut in two.
  const Copy* CopyAt(int32_t shard, Owner owner) const;
  // All who must have what `server` says of the shard are so far in its log
  // that it `has` it.
  void CheckConfirmed(const Twin& twin, Owner server, const std::string& what,
                      const std::function<bool(uint64_t index)>& has);
  // The follower has all that anybody was told of the shard.
  void CheckHasTold(const Twin& twin, Owner follower,
                    const std::optional<Owner>& server, const std::string& who);
  // The thread tells the worker so.
  void OnAccepted(Owner owner, const Life& life, int32_t shard, uint64_t seq);
  void OnAnswered(Owner owner, const Life& life,
                  const wire::PullAnswer& answer);
  // ---- Checkpoints.
  void CheckCut(const wire::View& before, const wire::View& view);
  // No shard moves or is cut in two before all have their state at the cut.
  void CheckNoCutPending(const std::string& what);
  bool IsBefore(const Cut& cut, const Contribution& contribution) const;
  bool IsBefore(const Cut& cut, const Update& update) const;
  // The shard counts its gradients as those of so many workers at the cut.
  int PresentAt(const Cut& cut, const Twin& twin, const Update& update) const;
  // Everything before the cut has been pushed.
  bool IsComplete(const Cut& cut, const Twin& twin) const;
  CutShard StateAt(const Cut& cut, const Twin& twin) const;
  void CompareCut(const CutShard& expected, const ShardState& actual,
                  const std::string& when);
  void CheckCutFence(const Twin& twin, const Contribution& contribution,
                     const std::string& who, Owner owner);
  void FollowCopy(Twin& twin, const ShardCore& core);
  void OnCut(Owner owner, const ShardCore::CutState& state);
  using StoredByName =
      std::map<std::pair<std::string, int64_t>, const ShardState*>;
  void CheckKept(const Cut& cut, const StoredByName& shards);
  // The shard is the model's, to the last bit.
  bool IsOf(const Model& model, const ShardState& shard) const;
  // The job was to be suspended, and was stopped because scripts were at work
  // after its last step.
  void CheckStoppedAfterLast(const wire::JobEnd& end);
  void CheckManifest(const Cut& cut, const checkpoint::Manifest& manifest);
  void CheckPrograms(const Cut& cut, const SimCheckpoint& checkpoint);
  // ---- If the job goes on from a checkpoint.
  Clock BeginsAt(int32_t rank) const;
  std::pair<Clock, Clock> Beginnings() const;  // The smallest and the largest.
  void CheckBegin(const wire::View& view);
  void Resume(Twin& twin);
  void CheckResumed(const Twin& twin, const ShardCore& core);
  void UpdateMinClock(Twin& twin);
  // Lives that the coordinator counts as members now.
  bool Live(const Life& life) const { return live_.count(life) > 0; }
  // An answer's bytes are not the twin's: finds out which invariant that
  // breaks.
  Violation Explain(const Twin& twin, Version version,
                    const std::vector<float>& actual) const;
  std::optional<Violation> ExplainAsOtherPushes(
      const Twin& twin, Version version,
      const std::vector<float>& actual) const;

  const Optimizer& OptimizerOf(TableId table) const {
    return optimizers_[static_cast<size_t>(table)];
  }

  const Scenario& scenario_;
  std::vector<Optimizer> optimizers_;  // By table, as the scenario has them.
  std::optional<Violation> violation_;
  bool judges_no_more_ = false;
  CheckerStats stats_;
  std::map<uint64_t, std::string> published_;  // Views by number.
  std::map<PeerId, uint64_t> member_view_;
  wire::View latest_view_;
  std::set<int32_t> server_indices_;  // Of all that ever joined.
  size_t joined_count_ = 0;
  std::set<Life> live_;
  std::map<int32_t, Twin> twins_;  // By shard.
  struct ShardThread {
    std::shared_ptr<const View> view;  // Handed to it last.
    uint64_t first_view = 0;           // In which the job runs.
    bool created = false;              // Has seen that the job runs.
    size_t waiting = 0;                // Requests, last time.
    bool was_deposed = false;          // It has counted what nobody knows of.
    // How stale gradients and answers were, as the twins have it.
    run::ServerStats staleness;
  };
  std::map<Owner, ShardThread> shard_threads_;
  std::map<std::pair<int32_t, uint64_t>, Move> moves_;  // By shard and id.
  std::map<uint64_t, std::pair<int32_t, uint64_t>> done_in_;  // By view.
  std::map<uint64_t, Move> failover_in_;  // By view: one of its shards.
  // Shards that were given to one who followed them, or kept by one.
  std::set<int32_t> inherited_;
  // By shard. Those of servers that are gone stay.
  std::map<Owner, std::map<int32_t, Copy>> copies_;
  // What a shard was at a place of its log, whoever had it.
  std::map<std::tuple<int32_t, uint64_t, uint64_t>, uint64_t> digests_;
  std::set<Rank> oversized_;    // Whose gradients were above the bound.
  std::set<int32_t> given_up_;  // Shards of which a move was cancelled.
  std::map<std::pair<Life, uint64_t>, PullIntent> pulls_;  // By request.
  std::map<Life, uint64_t> joined_in_;  // The first view with it.
  std::map<Life, Clock> pushed_from_;
  std::map<Life, Clock> reached_;  // Largest clock asked for or begun.
  std::set<Life> worked_after_last_;
  // The versions that a step over servers is computed from.
  std::map<std::pair<Life, Clock>, std::map<int32_t, Version>> computed_from_;
  std::map<int32_t, Cut> cuts_;  // By number.
  // Of programs: what they had at first, and the steps that they have done.
  std::map<Life, std::string> program_began_;
  std::map<Life, std::set<Clock>> program_steps_;
  std::vector<Tensor> final_model_;
  // Elastic sampling: of a step.
  std::map<Contribution, ExampleRange> examples_;
  std::map<Rank, ModelPtr> initial_;
  std::map<Clock, ModelPtr> taken_;      // From the servers.
  std::map<Clock, ModelPtr> installed_;  // And given back.
  std::map<uint64_t, ModelPtr> bases_;   // Of groups: where they began.
  std::map<std::pair<uint64_t, Clock>, ModelPtr> reduced_;  // By group.
  std::map<Life, ModelPtr> replicas_;
  std::map<std::pair<uint64_t, Life>, ModelPtr> shared_;  // With a group.
  std::map<std::pair<Life, int32_t>, Version>
      seen_;  // Last version, by worker and shard.
};

}  // namespace slackline::sim
