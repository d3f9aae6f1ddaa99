// Everything that one seed draws before a run begins: the cluster, the job, and
// what goes wrong when. The same seed is the same run, event by event.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/compress/gradient_code.h"
#include "common/delays/delay_trace.h"
#include "common/ids.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/optimizer.h"
#include "common/optim/stale/stale_rule.h"
#include "common/payload.h"
#include "common/rng.h"
#include "common/sync/modes/mode.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"
#include "server/shard/log_feed.h"

namespace slackline::sim {

// Machines are numbered: servers first (the coordinator is in server 0), then
// workers, then the user, then the servers that are added while the job runs. A
// worker that is started again is on the same machine.
using Node = int;

struct NetworkFaults {
  double loss = 0;       // Chance of a message to vanish.
  double duplicate = 0;  // To arrive once more, perhaps much later.
  double reorder = 0;    // To be overtaken by later ones of its own link.
  double slow = 0;       // To take 20 times longer than usual.
  absl::Duration delay_min = absl::Microseconds(50);
  absl::Duration delay_max = absl::Milliseconds(1);
};

struct FaultEvent {
  enum class Kind { kIsolate, kCutLink, kCrash };
  Kind kind{};
  absl::Duration at;
  Node node = 0;
  Node peer = 0;            // Other end of a link that is cut.
  absl::Duration duration;  // How long a partition lasts.
  bool one_way = false;     // Only what goes from `node` to `peer` is cut.
  // Messages sent across a cut arrive after it, as TCP would have them;
  // otherwise they are lost.
  bool held = false;
  // A crashed worker comes back `duration` later; with replicas a server, too.
  bool restart = false;
  bool drop_sent = false;  // What a crashed process had sent is lost.
};

// What reality has beyond lost messages, cuts and crashes. Each is drawn apart
// from all else, so that one of them does not change what a seed draws without
// it.
struct Reality {
  bool stand_still = false;     // Stopped processes, suspended machines.
  bool clocks = false;          // Each machine's clock is ahead, and drifts.
  bool trainer_stalls = false;  // Steps of many leases, or without end.
  bool shard_stalls = false;    // Shard threads that stand still.
  bool inner_cuts = false;     // Between the processes and threads of server 0;
                               // and of a worker from one server, one way.
  bool links = false;          // Bandwidth, and queues that refuse.
  bool rules = false;          // Schedules and rules for stale gradients.
  bool stop_rules = false;     // The job ends by one.
  bool disk_errors = false;    // Files cannot be written for a while.
  bool garbage = false;        // Messages that make no sense, of strangers.
  bool given_delays = false;   // In place of the mode.
  bool bad_gradients = false;  // Of one worker, and the job has a bound.
  bool replicas = false;       // Shards have followers, and more servers die.
  bool rows = false;           // Servers keep some tables by rows.
  // A coordinator that has died comes back, alone or with server 0.
  bool coordinators = false;

  static Reality All();
  // What the tests have.
  static Reality Usual();
  // By the name of the member; nullptr if there is none of this name.
  bool* Find(const std::string& name);
  static std::vector<std::string> Names();
};

// The coordinator dies and comes back, if it has been there.
struct CoordinatorFault {
  // At that time; or in the next event that it has something to keep of, before
  // it is kept, or when it is but nobody has heard of it.
  enum class Moment { kAtOnce, kBeforeItIsKept, kBeforeItIsTold };
  absl::Duration at;
  absl::Duration duration;  // It is away.
  Moment moment{};
  bool with_host = false;  // Its process has ended; else it is a thread.
};

// Of a machine's monotonic clock. Wall clocks reach no core.
struct MachineClock {
  absl::Duration ahead;  // Of the others'.
  double drift = 0;      // Seconds per second.
};

// In which order a process that goes on finds what has come meanwhile. What
// comes over one link keeps its order.
enum class WakeOrder { kAsTheyCame, kTimersFirst, kMessagesFirst };

struct StandStillFault {
  absl::Duration at;
  Node node = 0;
  absl::Duration duration;
  bool suspend = false;  // The whole machine: its clock stands still, too.
  WakeOrder order{};
};

// The step of this clock takes so much longer, by whatever life of the worker.
struct TrainerStall {
  Rank rank{};
  Clock clock = 0;
  absl::Duration duration;  // Infinite: it never ends.
};

// A thread of a server does nothing; the process sends heartbeats.
struct ShardStall {
  absl::Duration at;
  int server = 0;
  int thread = 0;
  absl::Duration duration;
};

// The coordinator and the control thread of a server, mostly its own, do not
// reach each other, while the shard threads reach everybody; or the shard
// threads do not reach the control thread.
struct InnerCut {
  enum class Kind { kControlFromCoordinator, kShardsFromControl };
  Kind kind{};
  int server = 0;
  absl::Duration at;
  absl::Duration duration;
  bool held = false;
};

// Of each pair of machines, in each direction. 0: no bound.
struct LinkBounds {
  int64_t bytes_per_second = 0;
  int queue_max = 0;  // Messages that wait to leave; more are refused.
};

struct DiskFault {
  // The last two: of checkpoints.
  enum class File { kModel, kSummary, kPart, kManifest };
  File file{};
  absl::Duration at;
  absl::Duration duration;
};

// A message that makes no sense, sent by somebody who is no member.
struct GarbageFault {
  absl::Duration at;
  uint64_t luck = 0;  // Draws what it is and to whom it goes.
};

// What a user asks for while the job runs. Whom it concerns is drawn when the
// user has looked at the state of the job.
struct UserAction {
  enum class Kind {
    kMove,
    kMoveAll,
    kRebalance,
    kDrain,
    kAddServer,
    kSetMode,
    kFinish,  // Ends the job early.
    kCheckpoint,
    kSuspend,  // Ends the job after a checkpoint.
  };
  Kind kind{};
  absl::Duration at;
  int32_t shard = -1;  // To be moved; -1: any.
};

// A step in the life of a move, as one sees it from the network.
enum class MoveStep {
  kOrdered,       // The view that orders it, on its way to the source.
  kOrderedThere,  // ... to the target.
  kSnapshot,      // The first record.
  kRecord,        // A later one.
  kPush,          // A push that the source accepted meanwhile.
  kConfirmed,     // The target has some records.
  kGo,            // The last record.
  kOwned,         // The target owns the shard.
  kDone,          // The source tells the coordinator.
  kPublished,     // The view with the new owner, on its way to anybody.
  // Of copies: the source is the owner, the target a follower.
  kFollowerNew,       // The view with a follower that is not in sync yet, on
                      // its way to the owner.
  kFollowerNewThere,  // ... to the follower.
  kCopied,            // The first entry of the shard's log, with a snapshot.
  kFollowed,          // A later one.
  kResumed,           // The first one, to somebody who has the shard.
  kHas,               // The follower has some of the log.
  kLacks,             // It lacks what comes before.
  kInSync,            // The owner says that it has all.
  // Of a swap, in which the owner and a follower change places: a move that
  // copies nothing.
  kSwapGo,
  kSwapOwned,
  // Of a failover: the source is the server that was lost, the target the one
  // with the new owner.
  kPromoted,       // The view, on its way to the new owner,
  kPromotedThere,  // ... to another server.
};
constexpr int kMoveSteps = 10;
constexpr int kCopySteps = 12;
constexpr int kShardSteps = kMoveSteps + kCopySteps;
const char* MoveStepName(MoveStep step);

// Something goes wrong just when a move, a copy or a failover is at a step.
struct MoveFault {
  enum class Victim { kSource, kTarget, kCoordinator, kServer0, kWorker };
  enum class Kind {
    kCrash,
    kIsolate,  // The victim, from everybody.
    kCutEnds,  // Source and target from each other.
    kCutFromCoordinator,
  };
  MoveStep step{};
  int occurrence = 0;       // How many times the step is seen before.
  bool on_arrival = false;  // Else when the message leaves.
  bool before = false;      // The message itself is hit, too.
  Kind kind{};
  Victim victim{};
  absl::Duration duration;
  bool held = false;
  bool one_way = false;
  bool drop_sent = false;
};

// Moves, splits, and servers that come and go.
struct Placement {
  config::Rebalance rebalance;
  // The load that the planner is told of: some shards are hot, and which ones
  // changes after so long.
  double hot = 0;  // Share of the shards.
  absl::Duration hot_for = absl::Seconds(1000);
  LogFeedOptions feed;
  size_t waiting_max = 4096;
  std::vector<UserAction> user;
  std::vector<MoveFault> faults;
  // Workers wait with the last step until, after the last fault, what was begun
  // has come to its end.
  bool linger = false;
};

// A step in the life of a change of mode, as one sees it at one worker.
enum class PhaseStep {
  kAsked,       // The view with a change without a clock, on its way to it.
  kPromised,    // It says where it stops.
  kSettled,     // The view with the next phase, on its way to it.
  kTaking,      // It asks for the state.
  kTaken,       // It is sent some of it.
  kConnecting,  // It begins to connect.
  kConnected,   // All are connected.
  kCaughtUp,    // All are at one clock.
  kReducing,    // It has computed its gradients.
  kReduced,     // It has the sum.
  kRegroup,     // It asks for new connections.
  kArrived,     // It says that it has.
  kAllArrived,  // The view that says that all have, on its way to it.
  kInstalling,  // It hands shards to a server.
  kEntered,     // It says that it has.
};
constexpr int kPhaseSteps = 15;
const char* PhaseStepName(PhaseStep step);

// Something goes wrong just when a worker is at a step of a change.
struct PhaseFault {
  enum class Victim { kItself, kAnother, kServer, kCoordinator };
  enum class Kind {
    kCrash,
    kIsolate,  // The victim, from everybody.
    kCutFromCoordinator,
  };
  PhaseStep step{};
  int occurrence = 0;       // How many times the step is seen before.
  bool on_arrival = false;  // Of the message, if the step is one.
  bool before = false;      // The message itself is lost, too.
  Kind kind{};
  Victim victim{};
  absl::Duration duration;
  bool held = false;
  bool drop_sent = false;
  bool restart = true;
};

// Phases, changes of the mode, and what goes wrong in them.
struct Modes {
  struct Phase {
    sync::Mode mode;
    Clock from = 0;
  };
  bool changes = false;      // At all.
  std::vector<Phase> later;  // That the config lists, after the first.
  std::vector<PhaseFault> faults;
  struct GroupFaults {
    double connect = 0;    // Chance of a rank to fail though nobody died.
    double operation = 0;  // Likewise, once connected.
    double late = 0;       // Chance of bad news to take long.
  };
  GroupFaults group_faults;
  bool lanes = false;               // Servers sum in all-reduce, too.
  bool begins_with_worker = false;  // What the tables begin with.
};

// Checkpoints that the config asks for, and how long their files take. Users
// ask for some, too.
struct Checkpoints {
  bool wanted = false;        // By anybody.
  config::Checkpoint config;  // Without `every_...`: none.
  // A user asks for one when nothing goes wrong any more.
  bool late = false;
  double slow = 0;  // Chance of a file to take up to `slow_max`.
  absl::Duration slow_max;
  std::set<int32_t> programs;  // Ranks whose programs keep something, too.
  // A worker is told that its time is over.
  struct Notice {
    int32_t rank = 0;
    absl::Duration at;
  };
  std::optional<Notice> notice;
  // A server is told that its time is over: it is drained, or wants a
  // checkpoint.
  struct ServerNotice {
    int32_t server = 0;
    absl::Duration at;
  };
  std::optional<ServerNotice> server_notice;
};

// For planted faults: where a store of rows loses one of them.
enum class PlantedRowLoss { kNone, kInSplits, kInSnapshots };

// A checkpoint that a run has left; see sim_checkpoint.h.
struct SimCheckpoint;

struct Scenario {
  uint64_t seed = 0;
  int servers = 1;
  int threads = 1;  // Shard threads of each server.
  int workers = 1;
  std::vector<int64_t> table_elements;
  int64_t shard_elements = 16;
  // How many elements a row has of each table that servers keep by rows; 0, and
  // for those that are not listed: it is dense.
  std::vector<int64_t> row_widths;
  PlantedRowLoss planted_row_loss = PlantedRowLoss::kNone;
  sync::Mode mode;  // Of the first phase.
  bool pull_ahead = false;
  bool step_by_table = false;
  double gathers = 0;  // In what part of its steps a script calls collectives.
  double asks_state = 0;  // How often a script asks for the optimizer's state.
  // How long, at most, a script does something else after its last step.
  absl::Duration after_last_max;
  // Where a shard lagged behind a late joiner's start, it pulls once more.
  bool even_pull = true;
  Clock steps = 5;
  config::Optimizer optimizer;  // With a learning rate of 1.
  // Of the tables themselves, perhaps with another rate; empty: none has one.
  // One without a kind: this table has none.
  std::vector<config::Optimizer> own_optimizers;
  // Gradients have options; else they are as the config says.
  bool rate_factors = false;
  // Steps have no gradient of some tables, as those of scripts with several
  // optimizers: the same tables for all workers.
  bool skips_tables = false;
  // The job begins when its members have been connected with each other.
  bool tries_links = false;
  // In which gradients are pushed. Every gradient for itself: what a code loses
  // is lost.
  GradientCode gradient_code;
  Keep gradient_keep = Keep::kLargest;
  // How steps get the values of each table; of those that are not listed, as
  // they are.
  std::vector<wire::Encoding::Kind> pulled_as;
  wire::Encoding::Kind PulledAs(TableId table) const {
    const auto index = static_cast<size_t>(table);
    return index < pulled_as.size() ? pulled_as[index]
                                    : wire::Encoding::FLOAT32;
  }
  // Elastic sampling. `steps` are then those of workers that keep pace.
  std::optional<wire::Elastic> elastic;
  size_t window_bytes = 1024;
  size_t message_bytes = 256;
  absl::Duration lease = absl::Milliseconds(500);
  absl::Duration start_timeout = absl::Seconds(10);
  absl::Duration retry_initial = absl::Milliseconds(50);
  absl::Duration retry_max = absl::Milliseconds(800);
  std::vector<absl::Duration> compute;   // Of one step, by rank.
  std::vector<absl::Duration> start_at;  // By node; the future: never.
  NetworkFaults network;
  std::vector<FaultEvent> faults;
  absl::Duration heal_at;  // From here on nothing goes wrong any more.
  Placement placement;
  Modes modes;
  Checkpoints checkpoints;
  // The job goes on from it; nullptr: it begins anew.
  std::shared_ptr<const SimCheckpoint> resume;
  // What a worker computes depends on its rank and the clock alone, and is the
  // same in all jobs with this seed.
  std::optional<uint64_t> gradient_seed;
  // Beyond the above: see Reality.
  Reality reality;
  std::vector<StandStillFault> stand_still;
  std::vector<TrainerStall> trainer_stalls;
  std::vector<ShardStall> shard_stalls;
  std::vector<InnerCut> inner_cuts;
  LinkBounds links;
  std::vector<DiskFault> disk;
  std::vector<GarbageFault> garbage;
  int replicas = 0;       // Followers of each shard.
  bool recovers = false;  // The coordinator keeps its state, and comes back.
  // Any server goes on as the coordinator then, not server 0 alone.
  bool takes_over = false;
  // For planted faults: members look for it in server 0 alone; or all machines
  // are taken for one, by whose clock the time goes on.
  bool planted_one_address = false;
  bool planted_one_clock = false;
  // Likewise: shard threads have a larger budget than they should.
  bool planted_no_budget = false;
  // Server 0 comes back at another address of the same name each time, and
  // perhaps without a sign of the end of the one before. Not if takes_over.
  bool address_moves = false;
  bool host_vanishes = false;
  // For planted faults: the next coordinator gives members a lease, and no time
  // to find it.
  bool planted_no_patience = false;
  // Likewise: server 0 that comes back begins anew.
  bool planted_new_run = false;
  // For planted faults of jobs with lanes: a server hands a sum out that lacks
  // a worker's part; or workers do not wait for a server that has gone, so each
  // try fails at once.
  bool planted_partial_sum = false;
  bool planted_no_wait_for_sums = false;
  std::vector<CoordinatorFault> coordinator_faults;
  config::LearningRateSchedule schedule;
  config::StaleGradients stale;  // Of all tables; perhaps none.
  // Of a job with one: some gradients of `broken` are kBrokenFactor times as
  // large as they would be.
  std::optional<config::GradientBound> gradient_bound;
  Rank broken{};
  static constexpr float kBrokenFactor = 1 << 20;
  // For planted faults: that of the servers is one that nothing is above.
  bool planted_loose_bound = false;
  GradientBound MakeGradientBound() const;
  config::Stop stop;
  // If the mode is that of given delays.
  DelayTrace delays;
  std::optional<DelayTrace> planted_delays;  // That the servers have instead.

  // For planted faults: the coordinator takes these for the job's where it cuts
  // checkpoints, and so cuts them anywhere.
  std::optional<DelayTrace> planted_cut_delays;
  double given_delays_chance = 0.1;  // That Widen() gives the job delays.

  // Draws what `reality` has.
  void Widen(const Reality& wanted);
  // Which tables are kept by rows: at least one.
  void DrawRows(Rng& rng);
  int64_t RowWidth(TableId table) const {
    const auto index = static_cast<size_t>(table);
    return index < row_widths.size() ? row_widths[index] : 0;
  }
  bool HasRows(TableId table) const { return RowWidth(table) > 0; }
  bool HasRows() const { return !row_widths.empty(); }
  // Gives the shards followers, and draws what happens to servers then, until
  // `last`. Unless `faulty`, nothing does.
  void DrawReplicas(bool faulty, absl::Duration last, Rng& rng);
  // The coordinator comes back when it has died. Draws when it does, until
  // `last`. Unless `faulty`, it never does.
  void DrawCoordinators(bool faulty, absl::Duration last, Rng& rng);
  // Any server takes over, which is what happens then; there are replicas, and
  // the coordinator comes back.
  void DrawTakeOvers(bool faulty, absl::Duration last, Rng& rng);
  // Something that may cost a server its place in the job.
  void DrawServerFault(absl::Duration at, Rng& rng);
  // Gives the job delays in place of its mode: by name, or as they might have
  // been recorded.
  void GiveDelays(Rng& rng);
  // The job is that of `first`, which has given delays: it has the same turns,
  // and what applies a gradient in its turn. To be called before Widen(), which
  // `first` has seen, and after.
  void TakeDelaysOf(const Scenario& first);
  MachineClock ClockOf(Node node) const;
  StaleRules MakeStaleRules() const;
  double RateFactorAt(Clock clock) const;  // Of the schedule.
  // Of the model of that clock: it only gets better.
  double AccuracyAt(Clock clock) const {
    return std::min(1.0,
                    static_cast<double>(clock) / static_cast<double>(steps));
  }
  // More steps than any worker does, if a few of them die.
  Clock StepsMax() const {
    return elastic.has_value() ? 2 * workers * (steps + 2) : steps;
  }

  // Any cluster and job of one mode; about one in eight is without faults.
  static Scenario Random(uint64_t seed);
  // The same with phases and changes of the mode.
  static Scenario RandomModes(uint64_t seed);

  // Of a phase: BSP, SSP, ASP or all-reduce.
  static sync::Mode RandomMode(Rng& rng);
  // Draws tables' own optimizers and factors of rates, now and then; apart from
  // all else, so that they do not change what a seed draws without them.
  void DrawRates();
  void DrawEarlyEnd();
  // Checkpoints, now and then; likewise. What an earlier call has drawn goes.
  void DrawCheckpoints();
  // Elastic sampling, now and then; likewise.
  void DrawSampling();
  void RemoveCheckpoints();
  // Nothing goes wrong, and nobody ends the job before its last step. Of a
  // scenario that was not widened.
  void RemoveFaults();
  // The job goes on from `checkpoint`, which another one has left: it has that
  // one's tables.
  void Resume(std::shared_ptr<const SimCheckpoint> checkpoint);
  // The tables begin with what a worker has: of a job that begins anew.
  bool BeginsWithWorker() const {
    return modes.begins_with_worker && resume == nullptr;
  }
  // A user or a worker asks for an end after a checkpoint; likewise.
  void DrawSuspension();
  bool suspends() const;
  // No checkpoint can be taken, whoever asks.
  bool RefusesCheckpoints() const { return elastic.has_value(); }
  // Makes BACKUP out of BSP, or DSSP out of SSP, now and then.
  void Vary(Rng& rng, sync::Mode* mode) const;

  std::vector<wire::Table> Tables() const;  // As a worker's join has them.
  Node WorkerNode(int rank) const { return servers + rank; }
  Node UserNode() const { return servers + workers; }
  Node ServerNode(int index) const {
    return index < servers ? index : UserNode() + 1 + index - servers;
  }
  // -1: there is no such server or worker on that node.
  int ServerOn(Node node) const {
    return node < servers ? node : node > UserNode() ? node - workers - 1 : -1;
  }
  int WorkerOn(Node node) const {
    return node >= servers && node < UserNode() ? node - servers : -1;
  }
  double stall_leases = 8;
  double save_leases = 24;  // For a file to get to the disk.
  // Longer than any step that is not stalled, shorter than a healing takes.
  absl::Duration stall_timeout() const { return stall_leases * lease; }
  void DrawGradientCode();
  void DrawPulledAs();
  const config::Optimizer& OptimizerOf(TableId table) const;
  // What a worker of this rank gives with its gradient. By all-reduce everybody
  // gives what rank 0 would.
  // Whether scripts call a collective in the step of this clock, or before that
  // of -clock.
  bool GathersAt(Clock clock) const;
  StepOptions GradientOptions(Rank rank, Clock clock, TableId table) const;
  // Whether a step over servers has no gradient of the table.
  bool Skips(Clock clock, TableId table) const;
  std::string ToString() const;

  // Whether that gradient is too large.
  bool IsBroken(Rank rank, Clock clock) const;
  // What this incarnation computes, for elements [begin, end) of the table:
  // different for everything that has a name, of magnitudes from 2^-24 to 128,
  // or kBrokenFactor times that,
  // so that every float sum of them tells in which order it was made. Of a
  // table by rows, two thirds of the rows are zeros.
  std::vector<float> Gradient(Rank rank, Incarnation incarnation, Clock clock,
                              TableId table, int64_t begin, int64_t end) const;
  // The same of the whole table, as it pushes it, and a part of that as servers
  // have it.
  CodedGradient PushOf(Rank rank, Incarnation incarnation, Clock clock,
                       TableId table) const;
  std::vector<float> Pushed(Rank rank, Incarnation incarnation, Clock clock,
                            TableId table, int64_t begin, int64_t end) const;
};

}  // namespace slackline::sim
