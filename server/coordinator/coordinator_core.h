// CoordinatorCore: membership and leases, the view, barriers, the rendezvous
// store, which shard is where, and the end of the job. Runs in server 0; the
// data path does not need it.
//
// FORMING until every server and worker of the config has joined, then RUNNING,
// then FINISHED or FAILED. A worker whose lease runs out leaves the view, and
// the others go on. A server whose lease runs out fails the job, unless it owns
// no shard. The worker of the lowest rank in the view is the chief: once all
// workers are done it evaluates and writes the model and reports the result. A
// stop rule that comes true before that ends the job as FINISHED, too.
//
// Placement: a user or the planner (planner.h) decides on moves; a view orders
// some of them at a time; the source of a move says when it is done
// (server/shard/hand_over.h), and the next view lists the new owner. A server
// may join while the job runs, and leaves when it is drained.
//
// Mode: the config's phases, and changes that a user or the policy
// (mode_policy.h) asks for: mode_changer.h.
//
// Deterministic state machine: no sockets, threads, clocks or randomness.
// Thread-compatible.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/message.h"
#include "common/view/shard_map.h"
#include "proto/cluster.pb.h"
#include "server/coordinator/mode_changer.h"
#include "server/coordinator/mode_policy.h"
#include "server/coordinator/rebalancer.h"

namespace slackline {

class CoordinatorCore {
 public:
  struct Options {
    std::string job;
    std::string config_hash;
    int servers = 1;
    int workers = 1;
    config::Sync sync;
    int64_t shard_elements = 65536;
    absl::Duration lease = absl::Seconds(5);
    absl::Duration start_timeout = absl::Seconds(60);
    // The rendezvous store refuses more. An address of a collective is ~ 1 KiB.
    size_t store_bytes_max = 64 << 20;
    int parked_calls_max = 65536;
    Rebalancer::Options rebalance;
    config::Stop stop;
  };
  struct Effects {
    std::vector<Outgoing> sends;
    std::vector<run::MetricRecord> records;  // New ones, to be kept.
    std::vector<run::MoveRecord> moves;      // Done ones, to be kept.
    std::vector<run::ModeRecord> modes;      // As above, changes of the mode.
    std::vector<std::string> log;            // Sentences for people.
  };

  explicit CoordinatorCore(const Options& options);

  void Start(absl::Time now);
  void OnMessage(const PeerId& from, const Message& message, absl::Time now,
                 Effects* effects);
  // Lets leases and deadlines run out. Call it at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;
  // A user or the driver ends the job. Without effect once it has ended.
  void Fail(const std::string& reason, absl::Time now, Effects* effects);

  wire::JobState state() const { return view_.state(); }
  const std::string& reason() const { return view_.reason(); }
  // The job has ended and every living member knows (or had time to).
  bool Over(absl::Time now) const;

  // Everything known of the run, with totals over all members that ever were.
  run::Summary Summary() const;
  // Without the records of the first `moves_known` moves.
  wire::StatusReply Status(absl::Time now, int64_t moves_known = 0) const;

 private:
  struct Member {
    PeerId peer;
    wire::JoinRequest join;
    Incarnation incarnation = 0;
    absl::Time heard;
    uint64_t view_known = 0;
    uint64_t records_acked = 0;
    run::WorkerStats worker;
    run::ServerStats server;
    bool done = false;  // Workers: has left its work finished.
    bool founder = false;
    bool draining = false;  // Servers: gives its shards away, then leaves.
    bool worker_role() const {
      return join.role() == wire::JoinRequest::WORKER;
    }
  };
  struct ParkedCall {
    PeerId from;
    uint64_t call_id = 0;
    Incarnation incarnation = 0;
  };

  void OnJoin(const PeerId& from, const wire::JoinRequest& join, absl::Time now,
              Effects* effects);
  // Empty if the request fits the job and the members so far.
  std::string WhyRejected(const wire::JoinRequest& join) const;
  void OnHeartbeat(const PeerId& from, const Message& message, absl::Time now,
                   Effects* effects);
  void OnCall(const PeerId& from, const Message& message, absl::Time now,
              Effects* effects);
  void OnLeave(const wire::Leave& leave, Incarnation incarnation,
               absl::Time now, Effects* effects);
  // A drained server goes. Empty, or why it must not.
  std::string WhyServerMustStay(const Member& server) const;
  void Reply(const PeerId& to, uint64_t call_id, wire::Code code,
             const std::string& error, Effects* effects,
             const Payload* value = nullptr) const;
  void StartIfComplete(absl::Time now, Effects* effects);
  void FinishIfDone(absl::Time now, Effects* effects);
  // Stop rules hold while workers train.
  bool MayStop() const;
  void StopIfEvaluationMeetsRule(const run::MetricRecord& evaluation,
                                 absl::Time now, Effects* effects);
  void StopIfTimeIsUp(absl::Time now, Effects* effects);
  absl::Time StopTime() const;  // InfiniteFuture: there is none.
  void StopByRule(const std::string& rule, double seconds,
                  const run::Result& result, absl::Time now, Effects* effects);
  // The worker of the smallest clock, of those that are left.
  Clock SmallestClock() const;
  // What users ask for. Each call is done once, however often it comes.
  void OnUserCall(const PeerId& from, const wire::Call& call, absl::Time now,
                  Effects* effects);
  absl::StatusOr<run::Plan> OnPlacementCall(const wire::Call& call,
                                            absl::Time now, Effects* effects);
  absl::StatusOr<std::string> OnSetMode(const wire::SetMode& set_mode,
                                        absl::Time now, Effects* effects);
  // Modes.
  void OnPhaseCall(const Member& worker, const wire::Call& call, absl::Time now,
                   Effects* effects);
  // Answers what will happen, and sees to it.
  std::string ChangeMode(const SyncMode& mode, const std::string& reason,
                         absl::Time now, Effects* effects);
  void SwitchPolicyOn(Effects* effects);
  void AskPolicy(absl::Time now, Effects* effects);
  // True if the view changed: publish it.
  bool AdvanceModes(absl::Time now, Effects* effects);
  std::vector<ModeChanger::Worker> ModeWorkers() const;
  // Placement.
  void OnHandOverStates(const Member& server, absl::Time now, Effects* effects);
  void PlanIfDue(absl::Time now, Effects* effects);
  // Empty, or why no shard can move at all now.
  std::string WhyNothingMoves() const;
  // Orders what can start now in the view that is published next. True if there
  // was something.
  bool OrderMoves();
  std::vector<Rebalancer::Server> RebalancerServers() const;
  bool OwnsShards(int32_t server) const;
  void End(wire::JobState state, const std::string& reason, absl::Time now,
           Effects* effects);
  // Removes the member; `why` completes "worker 2 (pid 7 on host) ...".
  void Remove(Incarnation incarnation, const std::string& why, absl::Time now,
              Effects* effects);
  void CompleteBarriers(Effects* effects);
  // Drops what a member that is gone waits for.
  void ForgetCalls(Incarnation incarnation);
  void Publish(Effects* effects);
  void SendView(const Member& member, Effects* effects) const;
  Member* Find(wire::JoinRequest::Role role, int32_t index);
  std::vector<std::string> Missing() const;
  std::string Describe(const Member& member) const;

  const Options options_;
  absl::Time started_;
  absl::Time running_since_ = absl::InfiniteFuture();
  absl::Time trained_at_ = absl::InfiniteFuture();
  absl::Time ended_at_ = absl::InfiniteFuture();
  wire::View view_;
  std::string data_;  // What is trained on.
  Incarnation next_incarnation_ = 1;
  std::map<Incarnation, Member> members_;
  std::map<uint64_t, Incarnation> past_tokens_;  // Of members that are gone.
  std::map<std::string, std::vector<ParkedCall>> barriers_;  // By name.
  std::deque<std::string> passed_barriers_;  // The last ones, oldest first.
  std::map<std::string, Payload> store_;
  size_t store_bytes_ = 0;
  std::map<std::string, std::vector<ParkedCall>> store_gets_;  // By key.
  int parked_calls_ = 0;
  std::map<int, run::MetricRecord> latest_;  // By kind.
  std::optional<run::Result> result_;
  std::string stopped_;  // By which rule.
  bool stopped_by_time_ = false;
  double stopped_seconds_ = 0;  // When it came true, since running_since_.
  std::vector<run::WorkerStats> gone_workers_;
  std::vector<run::ServerStats> gone_servers_;
  std::vector<std::string> workers_lost_;
  ModeChanger modes_;
  std::optional<ModePolicy> policy_;  // While it chooses the mode.
  // The set of workers has changed, or they have to connect anew, or they have
  // done with all-reduce: the view that is published next begins a group.
  bool regroup_ = true;
  Rebalancer rebalancer_;
  absl::Time next_plan_ = absl::InfiniteFuture();
  int32_t next_server_ = 0;  // Smallest index that a new server may take.
  // The last calls of users, and their answers.
  std::deque<std::pair<std::pair<PeerId, uint64_t>, Outgoing>> user_calls_;
};

}  // namespace slackline
