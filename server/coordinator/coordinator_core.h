// CoordinatorCore: the coordinator of a job. Runs in a server; the data path
// does not need it.
//
// FORMING until every server and worker of the config has joined and can
// connect with those whom it needs, then RUNNING, then FINISHED or FAILED. A
// worker whose lease runs out leaves the view, and the others go on. A server
// whose lease runs out fails the job, unless others have copies of all shards
// that it owns. The worker of the lowest rank in the view is the chief: once
// all workers are done it evaluates and writes the model and reports the
// result. A stop rule that comes true before that ends the job as FINISHED,
// too.
//
// It hands each message to the part that it is for. What concerns all parts
// goes over one list of them (part.h): who has come and gone, what follows from
// an event, the next time to wake up, what the next coordinator has to know,
// status and summary. After each event they draw their conclusions, one after
// the other, until nobody has news (PartList::Advance()), in this order:
//
// | part | decides |
// | --- | --- |
// | Membership | who joins, and whose lease has run out |
// | KeptView | what the next coordinator gets of the view |
// | Formation | whether the job can begin, and where its workers begin |
// | MemberAccounts | what the summary says of all members that ever were |
// | JobOutcome | when the job has come to its end |
// | Suspension | when a job ends from which it can go on |
// | Checkpointer | when a checkpoint is taken, and what of it is there |
// | Placement | which shard moves where: users, the planner |
// | ModeControl | which mode holds from which clock: config, users, policy |
// | Copies | who has copies of which shard; whose a dead server's shards are |
// | ExampleGrants | who trains on which examples, with elastic sampling |
// | HoldUps | who holds others up for too long, and who is slow |
// | CollectiveCalls | which workers' calls wait for other workers |
// | Inspections | who is asked what its process does |
// | UserCalls | what becomes of users' calls, each carried out once |
//
// The order has reasons: a suspension asks for a checkpoint; moves that a user
// wants are begun before a change of the mode that has to wait for them, but
// not while a cut is wanted; and a shard that moves gets its copies afterwards.
//
// Not in the list, since nobody waits for their conclusions: ViewEditor makes
// one view of all edits of the event, with one number; ViewFeed says what a
// member is sent of it, changes or the whole; GradientWatch says what the job
// does about gradients that are not applied; Losses whether the job can do
// without a member; AfterTheEnd how long the coordinator is still there.
//
// What members have been told holds even if this coordinator dies: the parts
// keep what a successor has to know. The rest it learns anew, as from any
// member that was not heard for a while: who is loaded how, who stands still.
// What is under way goes on, but for a checkpoint, which is taken again, and
// connections among workers, which are made anew.
//
// Deterministic state machine: no sockets, threads, clocks or randomness.
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/delays/delay_source.h"
#include "common/message.h"
#include "proto/checkpoint.pb.h"
#include "proto/cluster.pb.h"
#include "server/coordinator/after_the_end.h"
#include "server/coordinator/checkpointer.h"
#include "server/coordinator/collective_calls.h"
#include "server/coordinator/copies.h"
#include "server/coordinator/effects.h"
#include "server/coordinator/example_grants.h"
#include "server/coordinator/formation.h"
#include "server/coordinator/gradient_watch.h"
#include "server/coordinator/hold_ups.h"
#include "server/coordinator/inspections.h"
#include "server/coordinator/job_delays.h"
#include "server/coordinator/job_outcome.h"
#include "server/coordinator/kept_job.h"
#include "server/coordinator/kept_view.h"
#include "server/coordinator/losses.h"
#include "server/coordinator/member_accounts.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/mode_control.h"
#include "server/coordinator/part_list.h"
#include "server/coordinator/placement.h"
#include "server/coordinator/state/kept_state.h"
#include "server/coordinator/stats_check.h"
#include "server/coordinator/suspension.h"
#include "server/coordinator/user_calls.h"
#include "server/coordinator/view_editor.h"
#include "server/coordinator/view_feed.h"

namespace slackline {

class CoordinatorCore {
 public:
  struct Options {
    std::string job;
    uint64_t run = 0;  // Drawn for this run; 0 only in tests.
    std::string config_hash;
    // It has its defaults filled in. Of its servers and workers only what
    // stands below counts.
    config::ClusterConfig config = {};
    std::vector<std::string> server_hosts = {};
    std::vector<std::string> worker_hosts = {};
    int protocol = 0;  // Members must have the same (common/version.h).
    wire::Build build;
    int servers = 1;
    int workers = 1;
    int64_t shard_elements = 65536;
    // The rendezvous store refuses more. An address of a collective is ~ 1 KiB.
    size_t store_bytes_max = 64 << 20;
    int parked_calls_max = 65536;
    int64_t split_elements_min = 1024;  // As in Rebalancer::Options.
    // Set if the job's delays are given.
    std::shared_ptr<const DelaySource> delays = nullptr;
    std::string checkpoint_root = {};  // Empty: none can be written.
    std::string mode = {};             // What --mode says, for manifests.
    // The checkpoint that the job goes on from; nullptr: it begins anew. As the
    // servers have read it: checked whole.
    std::shared_ptr<const checkpoint::Manifest> resume = nullptr;
    std::string resume_sha256 = {};
    std::string resume_folder = {};
    // What Checkpointer::Options has as `best`.
    std::optional<run::BestCheckpoint> best_checkpoint = std::nullopt;
    // The best one is kept, if the config says by which measure.
    bool keeps_best = true;
    // What it keeps outlives it, and so does the job: members wait for another.
    bool coordinator_may_return = false;
    // The server in whose process it is, and whether that has joined before
    // this coordinator began: it has taken over from another one then.
    int host_server = 0;
    bool host_has_joined = false;
    // How long members may need to find it, where it is elsewhere than the last
    // one: their leases are longer by that, once.
    absl::Duration found_within = absl::ZeroDuration();
    // The job begins once all members can connect with each other.
    bool try_links = false;
    CoordinatorClock clock = {};

    absl::Duration lease() const;
    uint64_t seed() const {
      return static_cast<uint64_t>(config.train().seed());
    }
  };
  using Effects = CoordinatorEffects;

  explicit CoordinatorCore(const Options& options);
  CoordinatorCore(const CoordinatorCore&) = delete;
  CoordinatorCore& operator=(const CoordinatorCore&) = delete;

  void Start(absl::Time now);
  // Instead of Start(): goes on with the job that another coordinator has left,
  // with the options that it had (KeptJobIn()). What it kept is all there is:
  // whatever it had said to anybody holds. DataLoss names the key that is
  // broken; then this core is of no use.
  absl::Status Recover(const CoordinatorState& state, absl::Time now,
                       Effects* effects);
  void OnMessage(const PeerId& from, const Message& message, absl::Time now,
                 Effects* effects);
  // Lets leases and deadlines run out. Call it at NextWakeup() or later, after
  // everything that has arrived was handed to OnMessage(). Time in which this
  // core was not run does not count: a lease is as long as the coordinator was
  // there to hear a heartbeat.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;
  // What has become of CoordinatorEffects::complete: the folder that it is in.
  void OnCheckpoint(int32_t cut, const absl::StatusOr<std::string>& folder,
                    absl::Time now, Effects* effects);
  // What has become of CoordinatorEffects::best or of a checkpoint since then:
  // the nearest one.
  void OnBestCheckpoint(const run::BestCheckpoint& best, absl::Time now,
                        Effects* effects);
  // The driver ends the job, since its process stops. A job that has ended
  // stays as it is.
  void Fail(const std::string& reason, absl::Time now, Effects* effects);

  wire::JobState state() const { return view().state(); }
  const std::string& reason() const { return view().end().reason(); }
  // The last view that was made. While FORMING it is sent to nobody.
  const wire::View& view() const { return editor_.view(); }
  // The job has ended and every living member knows (or had time to).
  bool Over(absl::Time now) const;
  // The lineage, as in checkpoint::Manifest.
  static uint64_t LineageOf(const Options& options);

  // Everything known of the run, with totals over all members that ever were.
  run::Summary Summary() const;
  // The records of the first `moves_known` moves are left out.
  wire::StatusReply Status(absl::Time now, int64_t moves_known = 0) const;

  // How much it keeps, to be compared with the members that there are.
  struct Sizes {
    size_t members = 0;
    size_t past_tokens = 0;
    size_t store_keys = 0;
    size_t store_bytes = 0;
    size_t gathers = 0;
    size_t gathers_bytes = 0;
    size_t parked_calls = 0;
    size_t user_calls = 0;
    size_t checkpoint_calls = 0;  // Calls that wait for one.
    size_t inspections = 0;
    int64_t inspection_bytes = 0;
    size_t phases = 0;
  };
  Sizes sizes() const;

 private:
  Moment At(absl::Time now) const;
  // What StatusReply.epoch says.
  int64_t EpochOfNewcomer() const;
  // What the event has changed.
  void Keep(absl::Time now, Effects* effects);
  // These begin and end an event.
  void Begin(absl::Time now);
  void RemoveExpired(absl::Time now, Effects* effects);
  void Conclude(size_t first_send, absl::Time now, Effects* effects);
  void Handle(const PeerId& from, const Message& message, absl::Time now,
              Effects* effects);
  void OnJoin(const PeerId& from, const wire::JoinRequest& join, absl::Time now,
              Effects* effects);
  void OnHeartbeat(const PeerId& from, const Message& message, absl::Time now,
                   Effects* effects);
  void OnRecords(const wire::Heartbeat& heartbeat, const Member& worker,
                 absl::Time now, Effects* effects);
  void OnWorkerStats(const run::WorkerStats& stats, const Member& worker,
                     absl::Time now, Effects* effects);
  void OnServerStats(const run::ServerStats& stats, const Member& server,
                     absl::Time now, Effects* effects);
  // What the member says cannot be; it stays a member.
  void Refuse(const std::string& why, const Member& member, Effects* effects);
  void OnCall(const PeerId& from, const Message& message, absl::Time now,
              Effects* effects);
  // The answer is OK.
  void OnStop(const wire::Stop& stop, const Member* member);
  void OnMemberCall(const Member& member, const Message& message,
                    absl::Time now, Effects* effects);
  void OnLeave(const wire::Leave& leave, const Member& member, absl::Time now,
               Effects* effects);
  void StartIfComplete(absl::Time now, Effects* effects);
  // Removes who holds others up, and ends the job if no worker can go on. Looks
  // at all workers, a few times in the time between two heartbeats of one.
  void EndStalls(absl::Time now, Effects* effects);
  // Removes the member; `why` completes "worker 2 (pid 7 on host) ...".
  void Remove(Incarnation incarnation, const std::string& why, absl::Time now,
              Effects* effects);
  // A worker of a running job is gone. Ends the job if it was the last one and
  // none takes its place at once, or if the others cannot do without it.
  void EndIfNoWorkerCanGoOn(const GoneMember& gone, Effects* effects);
  void SendView(uint64_t known, const Member& member, Effects* effects);

  const Options options_;
  ViewEditor editor_;
  ViewFeed feed_;
  Membership members_;
  KeptView kept_view_;
  JobDelays delays_;
  Formation formation_;
  ModeControl modes_;
  MemberAccounts accounts_;
  JobOutcome outcome_;
  Copies copies_;
  Placement placement_;
  Checkpointer checkpointer_;
  Suspension suspension_;
  UserCalls user_calls_;
  HoldUps hold_ups_;
  GradientWatch gradients_;
  CollectiveCalls collectives_;
  ExampleGrants grants_;
  Inspections inspections_;
  Losses losses_;
  AfterTheEnd after_the_end_;
  PartList parts_;
  Incarnation behind_ = 0;  // Who has not seen the last view, in this event.
  KeptState kept_;
};

}  // namespace slackline
