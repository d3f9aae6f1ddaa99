// Membership: who the members of the job are: joins, incarnations, leases, and
// who waits for a place that another holds. Whether a process fits the job is
// JobTerms' to say, which it owns.
//
// Time in which this process did not run does not count: a lease is as long as
// the coordinator was there to hear a heartbeat (common/time/awake_clock.h).
//
// Deterministic state machine: the time goes in. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/time/awake_clock.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"
#include "server/coordinator/job_terms.h"
#include "server/coordinator/part.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

// What Membership, which alone writes it, has of a member.
struct Member {
  PeerId peer;
  wire::JoinRequest join;
  Incarnation incarnation = 0;
  absl::Time heard;
  absl::Time heard_awake;   // In awake time: what the lease goes by.
  int graces = 0;           // How often its lease was made longer since then.
  uint64_t view_known = 0;  // The last that it says it has seen.
  uint64_t view_sent = 0;   // It may be lost.
  uint64_t records_acked = 0;
  int64_t sent_micros = 0;  // When it sent its latest heartbeat, by its clock.
  run::WorkerStats worker;  // What it said of itself last, if it is a worker.
  run::ServerStats server;  // What it said of itself last, if it is a server.
  // Workers: has done its last step (HasTrained() in common/sync/phases.h). Its
  // program may work on.
  bool trained = false;
  bool done = false;  // Workers: has left its work finished, and has trained.
  bool founder = false;
  Clock begins_at = 0;    // Where a founder begins.
  bool refused = false;   // Something that it said; that has been logged.
  bool draining = false;  // Servers: gives its shards away, then leaves.
  // When what it said of itself was last kept for the next coordinator.
  absl::Time kept_at = absl::InfinitePast();

  bool worker_role() const { return join.role() == wire::JoinRequest::WORKER; }
  int32_t index() const { return join.index(); }
};

// "worker 2 (pid 7 on host)".
std::string Describe(const Member& member);
// Says nothing yet, and answers no heartbeat.
Outgoing HeartbeatReplyTo(const Member& member);
// The end of the job is about this member.
void PutWho(const Member& member, wire::JobEnd* end);
// A worker is gone, at its clock.
std::string LostText(const GoneMember& gone);
// What views list of a member.
wire::ServerMember ServerOf(const Member& server);
wire::WorkerMember WorkerOf(const Member& worker);

class Membership : public CoordinatorPart {
 public:
  struct Options {
    JobTerms::Options terms;
    // Where the config has its processes, by index and rank; empty: unknown.
    std::vector<std::string> server_hosts = {};
    std::vector<std::string> worker_hosts = {};
    absl::Duration lease = absl::Seconds(5);
    // The checkpoint that the job goes on from, for workers.
    std::string checkpoint_folder = {};
    bool coordinator_may_return = false;  // As in JoinReply.
    // These three are as in CoordinatorCore::Options.
    int host_server = 0;
    bool host_has_joined = false;
    absl::Duration found_within;
  };
  // A member sends so many (common/membership).
  static constexpr int kHeartbeatsPerLease = 5;
  // A member that is lost while no coordinator is there is counted as it was so
  // long ago, at most.
  static constexpr absl::Duration kStatsKeptEvery = absl::Seconds(5);

  explicit Membership(const Options& options);

  // Called at the beginning of each event. After a pause of this process, what
  // members sent meanwhile waits to be read, so the lease of each of them lasts
  // for at least one more heartbeat. For some pauses only, until it is heard
  // again: who is run too rarely finds the dead, though late.
  void Run(absl::Time now);
  // This process has run for so long.
  absl::Time AwakeTime(absl::Time now) const { return awake_.At(now); }
  const AwakeClock& awake() const { return awake_; }

  struct JoinAnswer {
    wire::JoinReply reply;
    const Member* joined = nullptr;  // A new member.
    bool replaces = false;  // A server of the index of one that is gone.
    // It has joined before: the reply was lost.
    const Member* repeated = nullptr;
    // A sentence, once: a process of the config cannot take its place.
    std::string refused;
  };
  // `why_no_worker` is why no worker can join just now; empty: one can.
  JoinAnswer OnJoin(const PeerId& from, const wire::JoinRequest& join,
                    const wire::View& view, const std::string& why_no_worker,
                    absl::Time now);
  // Who was told within the last lease to wait for a worker's place, by rank.
  struct Knock {
    PeerId from;
    wire::JoinRequest join;
    absl::Time at;
  };
  std::vector<Knock> RecentKnocks(absl::Time now) const;
  // A process of the config says that it will not join. A sentence for the log;
  // empty if that was said before, or it is of another job or in no place of
  // the config.
  std::string OnCannotJoin(const wire::CannotJoin& cannot);
  // Until when, in awake time, somebody may ask again who was told that there
  // is no place for it, or not yet: the server of this process, and
  // whoever has asked not long ago. They are to hear how the job has ended.
  absl::Time AskedUntil() const;
  // There is no server in this process any more.
  void AwaitNoHost() { host_came_ = true; }

  // nullptr if there is none.
  const Member* Find(Incarnation incarnation) const;
  const Member* FindServer(int32_t index) const;
  const Member* FindWorker(int32_t rank) const;

  // ---- What others say of a member, which is there.

  void Hear(const Member& member, absl::Time now);
  // It says that it has seen this view.
  void NoteViewKnown(const Member& member, uint64_t number);
  void NoteViewSent(const Member& member, uint64_t number);
  // Whether this heartbeat is the latest of the member so far, by
  // Heartbeat.sent_micros; one that does not measure is. What an earlier one
  // says, which has come late, is over.
  bool NoteLatest(const Member& member, int64_t sent_micros);
  // What it says of itself, bounded (stats_check.h); of a worker without the
  // servers' answers. `view` says when a worker has trained.
  void SetStats(const Member& worker, const run::WorkerStats& stats,
                const wire::View& view);
  void SetStats(const Member& server, run::ServerStats stats);
  // Something that it says cannot be. True: for the first time.
  bool NoteRefused(const Member& member);
  // The worker has left its work finished.
  void SetDone(const Member& worker);
  void SetDraining(const Member& server, bool draining);
  // The worker, a founder, begins at this clock.
  void SetBeginsAt(const Member& worker, Clock clock);
  // What the view, of a job that has begun and goes on with another
  // coordinator, says of members. Returns how many of these there are.
  int FollowView(const wire::View& view);

  // ---- Members go
  // The member goes, and its token is remembered. It is there. `running`: the
  // job has begun.
  Member Remove(Incarnation incarnation, bool running);
  // Whose leases have run out; each is named once, and is to be removed. A
  // lease that is over is looked at twice: after a pause that is too short to
  // count, the driver may not yet have all that came in it when it looks first.
  // Looks at the members only when one of them may be due.
  std::vector<Incarnation> Expired(absl::Time now);
  // No lease runs out before.
  WakeUp NextWakeUp() const override { return {.awake = next_expiry_}; }
  absl::Duration Silence(const Member& member, absl::Time now) const {
    return awake_.At(now) - member.heard_awake;
  }

  // Oldest first.
  const std::map<Incarnation, Member>& all() const { return members_; }
  // The join of the first worker, with the tables, which the members' lack.
  // There has been a worker.
  const wire::JoinRequest& model() const { return terms_.model(); }
  // By index, and by rank.
  const std::map<int32_t, const Member*>& servers() const { return servers_; }
  const std::map<int32_t, const Member*>& workers() const { return workers_; }
  // All workers that there are have done their last step.
  bool AllTrained() const;
  // Members of the config that are not there.
  struct Missing {
    std::vector<int32_t> servers;
    std::vector<int32_t> workers;
    bool empty() const { return servers.empty() && workers.empty(); }
  };
  Missing WhoIsMissing() const;
  // "server 1 on 10.0.0.2", "worker 0 on b", or "worker 0" if the host is not
  // known.
  std::vector<std::string> NamesOf(const Missing& missing) const;
  // Sentences: why processes of those cannot join, as they or we said last.
  std::vector<std::string> WhyMissing(const Missing& missing) const;
  // The member is removed for another reason than its lease, and lives: it is
  // told. `why` completes "worker 2 (pid 7 on host) ...".
  void NoteWhyRemoved(Incarnation incarnation, const std::string& why);
  // Empty: its lease ran out, or that is long ago.
  std::string WhyRemoved(Incarnation incarnation) const;
  void Keep(absl::Time now, KeptState* kept) override;
  // All members have a whole lease from now on, and the time in which they find
  // this coordinator.
  absl::Status Load(const StateReader& reader, const Moment& moment,
                    CoordinatorEffects* effects) override;
  // The records of a worker's heartbeat that it has not sent before, without
  // what cannot be; from now on they are acknowledged. What is beyond a bound
  // comes again.
  std::vector<run::MetricRecord> TakeRecords(const wire::Heartbeat& heartbeat,
                                             const Member& worker);
  // The member has said something of its state, which is kept now and then.
  void NoteStats(const Member& member, absl::Time now) {
    if (now - member.kept_at >= kStatsKeptEvery)
      changed_.insert(member.incarnation);
  }

  // What each member has said of itself, and which server may come next.
  void PutStatus(const StatusQuestion& question,
                 wire::StatusReply* status) const override;

  size_t past_tokens() const { return past_tokens_.size(); }

 private:
  Member& At(const Member& member) { return members_.at(member.incarnation); }
  JoinAnswer Answer(const PeerId& from, const wire::JoinRequest& join,
                    const wire::View& view, const std::string& why_no_worker,
                    absl::Time now);
  // " on host" of the config; empty: it is not known.
  std::string OnHost(bool is_worker, int32_t index) const;
  // Somebody else has the place.
  void SayHeld(const PeerId& from, const wire::JoinRequest& join,
               const Member& present, absl::Time now, wire::JoinReply* reply);
  // The request is complete: it is a member now.
  Member& Admit(const PeerId& from, wire::JoinRequest join, bool founder,
                absl::Time now);
  // A process of a place of the config says, or is told, why it cannot join. As
  // of OnCannotJoin().
  std::string NoteObstacle(bool is_worker, int32_t index,
                           const std::string& who, const std::string& why);

  const Options options_;
  AwakeClock awake_;
  JobTerms terms_;
  Incarnation next_incarnation_ = 1;
  int32_t next_server_ = 0;
  std::map<Incarnation, Member> members_;
  std::map<int32_t, const Member*> servers_, workers_;  // Into members_.
  // Tokens of members that are gone: the last ones, oldest first. A process
  // whose token is forgotten and that knocks again is a new one, and gets a new
  // incarnation.
  std::map<uint64_t, Incarnation> past_tokens_;
  std::deque<uint64_t> past_token_order_;
  std::map<int32_t, Knock> knocks_;  // By rank.
  // Who wants a place that a member holds: the last one for each, and since
  // when. By role (true: worker) and index.
  struct Waiter {
    uint64_t token = 0;
    absl::Time since;
  };
  std::map<std::pair<bool, int32_t>, Waiter> waiters_;
  // Why processes could not join, by role (true: worker) and index: of places
  // of the config in which nobody is.
  std::map<std::pair<bool, int32_t>, std::string> obstacles_;
  std::map<Incarnation, std::string> why_removed_;  // The last ones.
  // When they asked last who have no place, in awake time, by token.
  std::map<uint64_t, absl::Time> asking_;
  bool host_came_;  // The server of this process has come to this coordinator.
  // No lease runs out before.
  absl::Time next_expiry_ = absl::InfiniteFuture();
  // When it looked last, in awake time.
  absl::Time looked_ = absl::InfinitePast();
  std::set<Incarnation> changed_;  // Members whose state is new since Keep().
  bool news_ = true;  // State of no member that is there is new, too.
};

}  // namespace slackline
