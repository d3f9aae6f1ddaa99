// ShardCore: what one shard thread decides. Admits pushes and pulls, makes of
// each push the record that the shard applies (ShardMachine), gates pulls,
// answers, counts, hands shards over as the view orders, and says what they are
// at the cut that the view has (ShardCut). Sends the log of its shards to their
// followers, and answers nobody before these have what the answer says; follows
// shards of others, and serves one when the view says that it owns it now.
//
// Deterministic state machine: messages and the time go in, effects come out;
// no sockets, threads, clocks or randomness. Thread-compatible. The order of
// effects depends only on the order of events.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/node_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/shard_state.h"
#include "common/delays/delay_source.h"
#include "common/message.h"
#include "common/optim/gradient_bound.h"
#include "common/optim/stale_rule.h"
#include "common/optim/update_rule.h"
#include "common/sync/dssp_controller.h"
#include "common/sync/staleness_gate.h"
#include "common/view/shard_map.h"
#include "proto/run.pb.h"
#include "server/shard/feed_link.h"
#include "server/shard/follower_feeds.h"
#include "server/shard/given_delays.h"
#include "server/shard/held_answers.h"
#include "server/shard/log_feed.h"
#include "server/shard/pull_replies.h"
#include "server/shard/shard_cut.h"
#include "server/shard/shard_machine.h"
#include "server/shard/stale_pushes.h"

namespace slackline {

// One step in the life of a shard, for traces and tests.
struct ShardTraceRecord {
  enum class Kind {
    kPullAnswered,
    kPushAccepted,
    // A push that was accepted and changes nothing but its sender's clock: the
    // rule for stale gradients drops it, it has a NaN or an infinity, or it is
    // above the bound of gradients.
    kPushDiscarded,
    kAdvanced,  // Also by a shard that others have installed already.
    kUpdated,
    kInstalled  // By this worker, at the beginning of this clock.
  };
  Kind kind{};
  ShardId shard{};
  Rank rank{};
  Incarnation incarnation = 0;
  // Of the pull or push; for kUpdated from held gradients, their clock.
  Clock clock = 0;
  Clock min_clock = 0;  // Smallest clock of a participant, at that moment.
  Version version = 0;  // Answered; or computed from; or reached by the update.
  uint64_t request_id = 0;  // Of the pull.
  // Of kUpdated: whose gradients it has, in order, and the number of workers
  // that one clock is divided by.
  std::vector<Rank> ranks = {};
  int workers = 0;
  uint64_t index = 0;  // Of the shard's log by then, as in LogPosition.
};

// What a shard gave its thread to do; for measuring load.
struct ShardWork {
  ShardId shard{};
  int pushes = 0;
  int pulls = 0;
  size_t bytes_in = 0;
  size_t bytes_out = 0;
  size_t bytes_applied = 0;  // Gradients that an update read.
};

class ShardCore {
 public:
  struct Options {
    Owner self;
    uint64_t seed = 0;  // Of the initial values.
    bool trace = false;
    LogFeedOptions feed = {};
    StaleRules stale = {};
    // Required if the job's mode follows given delays.
    std::shared_ptr<const DelaySource> delays = nullptr;
    // Required if the job goes on from a checkpoint: what shards begin as.
    std::shared_ptr<const StoredShards> stored = nullptr;
    // What becomes of a gradient with a NaN or an infinity: it is discarded in
    // any case; with STOP the coordinator is told at once.
    config::Train::Nonfinite nonfinite = config::Train::STOP;
    // Of every gradient; one that is above it is discarded, and if the bound
    // stops jobs the coordinator is told at once.
    GradientBound gradient_bound = {};
    // Requests of one shard each that wait while their shard is on its way, and
    // their payload bytes: for one shard, and for all of this thread. What is
    // beyond a bound is told to RETRY.
    size_t waiting_max = 4096;
    size_t waiting_bytes_max = 16 << 20;
    size_t waiting_bytes_max_all = 64 << 20;
    // A message of pull answers takes no more of them at this payload.
    size_t reply_bytes = 1 << 20;
    // Messages of hand-overs that wait for a view, and their payload bytes;
    // more are left to be repeated.
    size_t early_max = 64;
    size_t early_bytes_max = 16 << 20;
    // Of what is sent: the shards' next versions, and sums for followers.
    std::shared_ptr<PayloadMemory> memory = std::make_shared<PayloadMemory>();
  };
  // What the shards of this thread are at a cut.
  struct CutState {
    int32_t number = 0;  // As in wire::Cut.
    // Sorted by table and elements; none if the thread serves none. The tensors
    // are references to versions that do not change any more.
    std::vector<ShardState> shards = {};
    uint64_t run = 0;  // As in wire::Header.
    // Not empty: why there is no such state. Names the shard.
    std::string error = {};
  };
  struct Effects {
    // To workers, and to other shard threads.
    std::vector<Outgoing> sends;
    std::vector<ShardTraceRecord> trace;  // Empty unless Options::trace.
    std::vector<ShardWork> work;
    // Stats() has news that the coordinator waits for: of a hand-over, or a
    // gradient that ends the job.
    bool report = false;
    // The present cut is complete in all shards that are served here, or will
    // not be; once for each cut.
    std::optional<CutState> cut;
    // The thread cannot go on: its shards could not be read. Names the shard.
    absl::Status failure;
  };

  ShardCore(const Options& options, config::LearningRateSchedule schedule);

  // The time, for all that follows. Sends again what was not confirmed in time.
  // Call it before a batch of messages, and at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;  // InfiniteFuture if nothing waits.

  // Handles one message from a worker or another shard thread. A message that
  // makes no sense, or belongs to another run than our view, changes nothing;
  // a worker is answered with an ErrorReply that says what is wrong.
  void OnMessage(const PeerId& from, const Message& message, Effects* effects);

  // A newer view: creates its shards when the job starts to run, forgets
  // workers that are gone and answers pulls that this unblocks, splits shards,
  // begins, ends and gives up moves, and begins a newer cut, which replaces one
  // that is not complete. An older view is ignored.
  void OnView(std::shared_ptr<const View> view, Effects* effects);

  // Ends a batch of messages: pull answers collected since the last call go
  // out, those for one worker in shared messages; so does what is new in the
  // logs of shards that are followed, and what has waited for followers. Call
  // it before waiting for more messages.
  void Flush(Effects* effects);

  // Every gradient that a thread has accepted is in one of the counters
  // applied, held, dropped, nonfinite and oversized
  // (common/metrics/gradient_counts.h). A shard that moves takes those that it
  // holds along: they are then held, and later applied, where it is. A held
  // gradient that is cut in two with its shard counts as two from then on.
  run::ServerStats Stats() const;
  // Serves this shard now.
  bool Owns(ShardId shard) const { return MachineOf(shard) != nullptr; }
  // Has, or gets, a copy of it.
  bool Follows(ShardId shard) const;
  // Entries of worker state over all shards: the dedup windows. At most one for
  // each shard and worker of the view.
  int64_t participant_count() const;
  // For tests: a shard that we serve now, and the pulls that it lets wait; else
  // nullptr.
  const ShardMachine* MachineOf(ShardId shard) const;
  const StalenessGate* GateOf(ShardId shard) const;
  const GivenDelays* DelaysOf(ShardId shard) const;
  // For tests: the copy of a shard that we follow; else, or if it is not whole
  // yet, nullptr.
  const ShardMachine* CopyOf(ShardId shard) const;
  // Shards that we follow.
  size_t copies_count() const;
  // Messages to workers that wait for followers.
  size_t answers_held() const { return held_.count(); }
  // Shards on their way, to here and from here, those that are gone included.
  size_t moves_count() const { return moving_.size(); }
  // For tests: what is under way to this shard thread; nullptr if nothing ever
  // was.
  const FeedLink* LinkOf(Owner target) const;
  // For tests: nullptr if no cut of this shard is under way.
  const ShardCut* CutOf(ShardId shard) const;
  // Requests that wait until it is clear who owns a shard.
  size_t waiting_count() const;
  size_t waiting_bytes() const;  // Of payload.
  // Bytes of pull answers that wait for Flush().
  size_t pending_reply_bytes() const { return replies_.bytes(); }

 private:
  using Requests = std::vector<Outgoing>;  // `to` is who asked.
  // Requests of one shard that wait until it is clear who owns it.
  struct Waiting {
    Requests requests;
    size_t bytes = 0;  // Of payload.
  };

  // The last step of a worker whose lead was counted.
  struct LeadCounted {
    Incarnation incarnation = 0;
    Clock clock = -1;
  };
  // Values of a shard as several workers pull them, made once.
  struct Rounded {
    Version version = 0;
    Payload values;
  };
  // A shard's place in its life here. Serving and Leaving serve it.
  struct Serving {
    ShardMachine machine;
    StalenessGate gate;
    // These three measure anew wherever the shard gets.
    StalePushes stale;
    DsspController dssp;
    absl::flat_hash_map<Rank, LeadCounted> leads = {};
    GivenDelays delays = {};
    FollowerFeeds followers;
    // As long as the present cut is not complete here.
    std::optional<ShardCut> cut = {};
    // Of the last answer that was rounded, until the shard changes.
    std::optional<Rounded> rounded = {};
  };
  struct Leaving {
    Serving serving;
    uint64_t move = 0;
    Owner target;
    // Absent: the target is one of the followers, and the two change places.
    std::optional<LogFeed> source;
    Waiting waiting;
  };
  struct Gone {  // While the view lists its move.
    LogFeed source;
    uint64_t move = 0;
    bool lost = false;  // To a server that has died.
    // We follow the shard from here on.
    std::optional<LogCopy> copy = {};
  };
  struct Arriving {
    LogCopy target;
    Waiting waiting;
  };
  struct Following {
    LogCopy copy;
  };
  using Place = std::variant<Serving, Leaving, Gone, Arriving, Following>;

  // How many phases, and how many cuts, the view of a sender has.
  struct Known {
    int32_t phases = 0;
    int32_t cuts = 0;
  };
  // Who asks, and what its view knows.
  struct Sender {
    PeerId peer;
    Rank rank{};
    bool member = false;  // A worker of our view, and the job runs.
    bool fenced = false;  // It is certainly none.
    uint64_t view_number = 0;
    Known known;
  };
  // What an entry for one shard meets before the shard looks at it.
  struct Admission {
    Place* place = nullptr;  // Serves the shard.
    // Else: where the entry can wait until it is clear who owns the shard;
    // nullptr if it cannot.
    Waiting* waiting = nullptr;
    std::optional<wire::Refusal> refusal;  // What it is told else.
  };

  void OnPush(const PeerId& from, const Message& message, Effects* effects);
  void OnPull(const PeerId& from, const Message& message, Effects* effects);
  // Says which pushes of the sender have been accepted. Changes nothing.
  void OnProbe(const PeerId& from, const Message& message, Effects* effects);
  // Counts the message as malformed, and tells a worker why.
  void Refuse(const PeerId& from, const std::string& error, Effects* effects);
  // What a message of ours says about us.
  void Sign(wire::Header* header) const;
  // To a worker: now, or when followers have what it says. Signs it.
  void SendToWorker(Outgoing out, Effects* effects);
  std::vector<HeldAnswers::Need> NeedsOf(const wire::Header& header) const;
  // Whoever is awaited has all that there is of the shard's log.
  static bool FollowersHaveAll(const Serving& serving) {
    return serving.followers.Have(serving.machine.position().index);
  }
  Sender SenderOf(const PeerId& from, const wire::Header& header,
                  Known known) const;
  // For pushes, pulls and probes alike.
  Admission Admit(const Sender& sender, int32_t shard);
  // Where the shard is, if that is known.
  std::optional<wire::Relocation> RelocationOf(ShardId shard) const;
  // Makes room there for one entry with these payloads, which the caller adds
  // to the message; nullptr if there is no room, or it cannot wait.
  Message* Wait(Waiting* waiting, const PeerId& from,
                const wire::Header& header,
                absl::Span<const Payload> payloads) const;
  // The shard looks at an entry. Returns why it does not do what it is asked;
  // a pull that is parked or answered is none of that.
  std::optional<wire::Refusal> OnAdmitted(Place& place, const Sender& sender,
                                          const wire::Push& push,
                                          absl::Span<const Payload> frames,
                                          uint64_t* accepted_seq,
                                          Effects* effects);
  std::optional<wire::Refusal> OnAdmitted(Place& place, const Sender& sender,
                                          const wire::Pull& pull,
                                          Effects* effects);
  void HandleWaiting(Requests requests, Effects* effects);

  // Of a Place or a const Place; nullptr where there is no such thing, or no
  // place.
  template <typename P>
  static auto* ServingOf(P* place);
  template <typename P>
  static auto* WaitingOf(P* place);
  template <typename P>
  static auto* SourceOf(P* place);
  template <typename P>
  static auto* CopyIn(P* place);
  static uint64_t MoveOf(const Place& place);  // Of one in moving_.
  Place* FindPlace(ShardId shard);
  const Place* FindPlace(ShardId shard) const;
  StalePushes NewStalePushes(ShardId shard) const;
  void MakeRules();
  // The feed to the target of the move.
  static const LogFeed* FeedOf(const Leaving& leaving);
  // The last element that the shard of this range can ever have had.
  int64_t TableEnd(const ShardRange& range) const {
    return TableElements(view_->table(range.table));
  }
  const std::shared_ptr<const UpdateRule>& RuleFor(
      const ShardRange& range) const {
    return rules_[static_cast<size_t>(range.table)];
  }
  void CreateShards(Effects* effects);
  // What the shard begins as: with the founders of the view, and the values
  // that its table's initializer names.
  absl::StatusOr<ShardMachine> NewMachine(const ShardRange& range) const;
  // We own the shard from here on, in a term of ours. These followers are
  // awaited, as those are that the view says to be in sync.
  Serving BeginToServe(ShardMachine machine, uint64_t term,
                       std::vector<FollowerFeeds::Known> awaited) const;
  // Of a copy, because the view says that we own the shard.
  void TakeOver(ShardId shard, Effects* effects);
  // The view says that somebody else owns it, and no move explains that: that
  // one has what we have told anybody.
  void Depose(ShardId shard, Effects* effects);
  // Of a copy whose log has another owner now: nobody will tell it any more
  // where the view has cut the shard. Makes the copies of the parts that we
  // have to have.
  void CutCopy(ShardId shard);
  // What the view says of owners that is not about moves.
  void FollowOwners(const View& before, Effects* effects);
  // What it says of followers.
  void FollowFollowers(const View& before);
  // Ours, or nullptr.
  const wire::Follower* ListedHere(ShardId shard) const;
  void SplitShards(const View& before, Effects* effects);
  // As the view's `number`-th split, if we serve the shard and it is not done.
  void SplitShard(int number, Effects* effects);
  // Whoever is in the view before and not in ours takes part nowhere any more.
  void RemoveGone(const View& before, Effects* effects);
  // At a shard that has just arrived: workers that our view does not have.
  void RemoveStrangers(Place& place, Effects* effects);
  void Remove(LeaveRecord leave, Place& place, Effects* effects);
  // Ends the moves that the view no longer lists. Returns who waited for them.
  Requests EndMoves(Effects* effects);
  void BeginMoves(Effects* effects);
  void OnHandOver(const PeerId& from, const Message& message, Effects* effects);
  // To the next owner of the shard, which it becomes with a go; and to a
  // follower, which may become it in the same way.
  void OnMove(const PeerId& from, const Message& message, Effects* effects);
  void OnFeed(const PeerId& from, const Message& message, Effects* effects);
  // Confirms what has been taken of the feed of the message.
  void Confirm(const PeerId& to, const wire::HandOver& hand_over,
               const LogCopy* copy, bool owned, Effects* effects);
  // Says that we can do nothing with the message.
  void Decline(const PeerId& to, const Message& message,
               Effects* effects) const;
  void OnHandOverReply(const PeerId& from, const Message& message,
                       Effects* effects);
  // The feed of the shard to that thread; nullptr if there is none.
  const LogFeed* FeedTo(ShardId shard, Owner target) const;
  void GoIfCaughtUp(ShardId shard, Place& place, Effects* effects);
  bool MustWait(const Leaving& leaving) const;
  FeedLink& LinkTo(Owner target);
  // Forgets what was under way to servers that are gone or live anew.
  void EndLinks();
  void Pump(LogFeed& source, Effects* effects);
  void SendFeed(Owner target, Message message, Effects* effects) const;
  // Asks again what the threads have that we have not heard of in time.
  void ProbeLinks(Effects* effects);
  // Sends what there is for followers of the shard.
  void PumpFollowersOf(ShardId shard, Effects* effects);
  // Sends what has waited for room, and what there is for followers.
  void PumpFeeds(Effects* effects);
  // Of the view's cut, if it is a newer one.
  void BeginCut(Effects* effects);
  // Nobody waits for the cut that is under way any more, if one is.
  void DropCut();
  void FailCut(ShardId shard, const absl::Status& why, Effects* effects);
  // The shard, whose cut is under way, may be complete.
  void LookAtCut(Serving& serving, Effects* effects);
  void EndCutIfComplete(Effects* effects);
  // Answers the parked pulls of a shard with MOVED.
  void TurnParkedAway(ShardId shard, StalenessGate& gate);

  // The only way in which a shard that we serve changes: applies the record,
  // tells who copies the shard, counts and traces what it did, and answers the
  // pulls that it lets go. `cause` is traced before its updates; the smallest
  // clock is filled in.
  ShardOutcome Commit(Place& place, const ShardRecord& record,
                      const std::optional<ShardTraceRecord>& cause,
                      Effects* effects);
  // A push that is next: its record, and what is traced of it.
  struct Accepted {
    ShardRecord record;
    ShardTraceRecord cause;
  };
  std::optional<wire::Refusal> Accept(Place& place, const wire::Push& push,
                                      const Payload& frame,
                                      const Participant& participant,
                                      Effects* effects);
  // Looks at the gradient before it can get anywhere: at its numbers, its size,
  // and with the rule for stale gradients. Counts it.
  Accepted Judge(Serving& serving, const wire::Push& push,
                 const Payload& gradient, const Participant& participant,
                 Effects* effects);
  // Of so many bytes on the wire.
  void CountPush(ShardId shard, size_t bytes, Effects* effects);
  // The same in a job whose delays are given: the gradient waits for its turn.
  std::optional<wire::Refusal> AcceptGiven(Place& place, const wire::Push& push,
                                           const Payload& gradient,
                                           size_t frame_bytes,
                                           const Participant& participant,
                                           Effects* effects);
  // The same of a worker that has no gradient of its step
  // (wire::Push::Advance).
  std::optional<wire::Refusal> AcceptGivenNothing(
      Place& place, const Participant& participant, Effects* effects);
  // Applies the gradients whose turn has come.
  void TakeTurns(Place& place, Effects* effects);
  // What a pull waits for, beside clocks of participants: the shard's clock, or
  // turns.
  static Clock ProgressOf(const Serving& serving);
  std::optional<double> Measure(const Payload& gradient) const;
  void CountNonfinite(ShardId shard, Rank rank, Clock clock, Effects* effects);
  void CountOversized(ShardId shard, Rank rank, Clock clock,
                      const GradientBound::Excess& excess, Effects* effects);
  // A worker hands a shard back, after steps by all-reduce. Answers as Accept()
  // does.
  std::optional<wire::Refusal> Install(Place& place, const wire::Push& push,
                                       absl::Span<const Payload> frames,
                                       WorkerLife who, Effects* effects);
  // Workers are about to replace what is there, and some of them may not take
  // part yet.
  bool AwaitsInstall(const ShardMachine& machine) const;
  // `changed` as of StalenessGate::Release().
  void ReleaseParked(Serving& serving, std::optional<Rank> changed,
                     Effects* effects);
  // A pull with these clocks, in the phase of its clock.
  // As steps get them: Table::pulled_as.
  Payload RoundedOf(Serving& serving, const GivenDelays::Base& told) const;
  StalenessGate::Pull Gated(Serving& serving, const PeerId& from,
                            const wire::Pull& pull) const;
  void Answer(Serving& serving, const StalenessGate::Pull& pull,
              Clock reported_clock, Effects* effects);

  const Options options_;
  const config::LearningRateSchedule schedule_config_;
  // By table, once a view says which there are, and how long the job is.
  std::vector<std::shared_ptr<const UpdateRule>> rules_;
  std::shared_ptr<const View> view_;
  bool created_ = false;  // The shards that we own from the start.
  absl::Time now_;
  // A place stays where it is in memory. Nothing depends on their order.
  absl::node_hash_map<ShardId, Place> places_;
  std::set<ShardId> moving_;  // Those that are not just served.
  // Records from sources whose view is newer than ours. So who takes part at an
  // arriving shard is never newer than our view, which says who has left.
  Requests early_;
  int32_t cut_seen_ = 0;  // The number of the last cut of a view.
  // That one, until it is complete in all shards.
  struct PendingCut {
    CutState state;
    size_t missing = 0;  // Places with a cut.
  };
  std::optional<PendingCut> cut_;
  PullReplies replies_;  // Not yet flushed.
  HeldAnswers held_;
  struct LinkToThread {
    Incarnation server = 0;  // Whose thread it is.
    FeedLink link;
  };
  std::map<Owner, LinkToThread> links_;
  // Shards with followers: those whose feeds may have something to send, those
  // that wait to be confirmed, and when to look at these, at the latest.
  std::set<ShardId> to_pump_;
  std::set<ShardId> unconfirmed_;
  absl::Time feeds_due_ = absl::InfiniteFuture();
  bool confirmed_ = false;  // Something, since the last Flush().
  uint64_t bytes_to_followers_ = 0;
  uint64_t bytes_resent_to_followers_ = 0;  // Of those.
  run::ServerStats stats_;
  // Where the ranks are in stats_.nonfinite() and stats_.oversized().
  absl::flat_hash_map<int32_t, int> nonfinite_entries_;
  absl::flat_hash_map<int32_t, int> oversized_entries_;
};

}  // namespace slackline
