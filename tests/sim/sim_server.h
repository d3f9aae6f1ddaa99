// A simulated server process: its member core, its shard cores, and in server 0
// the coordinator. Decides nothing that a real driver does not decide.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/membership/member_core.h"
#include "server/control/server_core.h"
#include "server/coordinator/beginning.h"
#include "server/coordinator/coordinator_core.h"
#include "server/shard/shard_core.h"
#include "tests/sim/sim_context.h"
#include "tests/sim/sim_link_trial.h"

namespace slackline::sim {

// What servers and workers have in common.
MemberCore::Options MemberOptions(const Scenario& scenario);

class SimCoordinator {
 public:
  // In server 0.
  explicit SimCoordinator(SimContext* context);
  ~SimCoordinator();

  // While it is away, the one that has died.
  const CoordinatorCore& core() const { return *core_; }
  // The server that it is in.
  int host() const { return host_; }
  // Of its thread alone, or with its server. It is away, or for ever gone.
  void Crash();
  // Its process stands still, and another one may lead: it is away, but who is
  // connected to it does not hear that before its machine goes on.
  void LoseLead();
  // Another one goes on from what it has kept, in this server. It is away.
  // `has_joined`: the server had before. `new_process`: it begins with it.
  void Recover(int host, bool has_joined, bool new_process);
  bool away() const { return away_; }
  // Dies so in its next event of which it has something to keep.
  void CrashInEvent(CoordinatorFault::Moment moment,
                    std::function<void()> crash) {
    crash_at_ = moment;
    crash_ = std::move(crash);
  }
  // There was no such event in time.
  void CrashInNoEvent() { crash_at_.reset(); }
  // For planted faults: what it keeps.
  std::function<void(std::vector<StateChange>* changes)> tamper_state;
  // For planted faults: what the disk has of that when the next one begins.
  std::function<void(std::string* log)> tamper_log;
  // Views no longer reach those who did not follow yet: the process has ended.
  bool over() const { return over_; }
  // Ranks of the workers that it has removed because they held others up, in
  // this order.
  const std::vector<int>& removed() const { return removed_; }

 private:
  CoordinatorClock ClockOf(int host) const;
  void Attach();
  void Leave();
  void OnAlarm();
  void OnMessage(const PeerId& from, const Message& message);
  // True: it has died so.
  bool CrashesAt(CoordinatorFault::Moment moment,
                 const CoordinatorCore::Effects& effects);
  void Commit(CoordinatorCore::Effects* effects);
  // What the disk has of a batch that was being appended.
  void LeaveTorn(const std::vector<StateChange>& changes);
  // As a FileStateStore that is opened or has grown.
  void RewriteLog();
  // That it has counted what the one before it had, all of which was kept.
  // By the clock of that one's machine it is `was_now`.
  void CheckCounts(const CoordinatorCore& before, absl::Time was_now) const;
  void Perform(CoordinatorCore::Effects* effects);
  // All parts of a cut are there; its manifest is to be written.
  void Complete(int32_t cut, checkpoint::Manifest manifest);
  // Why the cut had to be given up; nullptr: nothing has gone wrong.
  const char* ExcuseOf(int32_t cut) const;
  // Nobody leaves the view who was heard within the lease.
  void CheckRemovals(const wire::View& view);

  SimContext* const context_;
  int host_ = 0;
  SimMachine* machine_;  // Of the host.
  std::unique_ptr<CoordinatorCore> core_;
  CoordinatorState state_;  // Kept,
  std::string log_;         // by these bytes.
  // When something of it last reached the machine, by the machine's clock;
  // the coordinator may have read it later.
  std::map<PeerId, absl::Time> heard_;
  std::map<Incarnation, PeerId> members_;  // Of the last view.
  wire::View last_view_;
  std::map<Incarnation, PeerId> joined_;  // All that ever were told so.
  std::set<Incarnation> gave_up_;         // And said so, or held others up.
  std::vector<int> removed_;
  // When the view got the cut, and who was a member then.
  struct CutBegun {
    absl::Time at;
    std::map<Incarnation, PeerId> members;
    std::vector<int32_t> owners;  // By shard: the server.
  };
  std::map<int32_t, CutBegun> cuts_;
  bool over_ = false;
  bool away_ = false;
  int life_ = 0;
  bool has_unkept_ = false;
  std::optional<CoordinatorFault::Moment> crash_at_;
  std::function<void()> crash_;
  std::set<int32_t> lost_cuts_;  // Under way when one has died,
  std::set<int32_t> made_cuts_;  // and those whose manifest is on the disk.
  std::unique_ptr<Alarm> alarm_;
  Lifetime lifetime_;
};

class SimServer {
 public:
  // As in ServerCore::Options.
  SimServer(SimContext* context, int index, uint64_t token,
            bool may_host_before_joining = false);
  ~SimServer();

  void Crash(bool drop_sent);
  // It is told that its time is over.
  void Retire();
  // It has left after that.
  bool retired() const {
    return told_to_retire_ && end_.kind == ProcessEnd::Kind::kDrained;
  }
  const ProcessEnd& end() const { return end_; }
  bool joined() const { return core_.view() != nullptr; }
  // Of the ServerCore.
  void SetHostsCoordinator(bool hosts) { core_.SetHostsCoordinator(hosts); }
  ServerCore::Candidacy Candidacy() const {
    return core_.CandidacyAt(machine_->now());
  }
  bool has_run() const { return core_.run() != 0; }
  // It has ended because the coordinator did not hear it in time.
  bool given_up() const;
  // What may be broken on purpose.
  enum class Plant {
    kNone,
    kHideLosses,      // Shard threads see views in which nobody ever leaves.
    kServeOn,         // They go on serving a shard that they have given away.
    kForgetSequence,  // They split shards without the sequence numbers.
    kInstallAgain,    // They forget that a shard was installed.
    kLooseBounds,     // They take those of DSSP and BACKUP for larger.
    kMiscount,        // They forget how stale gradients were.
    kTakeLate,        // They take late gradients of BACKUP as if in time.
    kCutTooEarly,     // Of a cut they have what they were when they knew it.
    kCutTooLate,      // ... what they are when it is complete.
    kWriteLater,      // The part of a cut changes before it is on the disk.
    kOldPart,         // It is said to be there, of the cut before.
    kNothingWaits,    // It lacks the gradients that wait for their turns.
    kBeginLate,       // A job that goes on begins with a worker too far.
    kForgetInCopies,  // They follow shards without the sequence numbers.
  };
  void SetPlant(Plant plant) { plant_ = plant; }
  // A shard thread does nothing for so long. What comes for it waits.
  void Stall(int thread, absl::Duration duration);
  // Nothing passes between the control thread and the shard threads for so
  // long; it all comes afterwards.
  void CutShardsFromControl(absl::Duration duration);
  const PeerId& control_peer() const { return control_peer_; }
  const SimLinkTrial& links() const { return links_; }
  Incarnation incarnation() const { return core_.incarnation(); }
  std::string StatusLine() const;

 private:
  struct Thread {
    std::unique_ptr<ShardCore> core;
    std::unique_ptr<Alarm> alarm;
    // It stands still until then, and has this to do.
    absl::Time stalled_until = absl::InfinitePast();
    std::vector<std::function<void()>> waiting;
    bool flush_pending = false;
    bool report_pending = false;
    absl::Time view_arrives;              // Of the last view on its way.
    std::shared_ptr<const View> offered;  // By the control thread.
    uint64_t view_number = 0;  // Of the last view that it has taken in.
    std::shared_ptr<const View> shown;  // With kHideLosses, the last one.
    std::vector<ShardState> at_cut;     // With kCutTooEarly: when it knew it.
  };

  void LookAt(int host);
  void Perform(ServerCore::Effects* effects);
  // Does it on the thread: now, or when it goes on.
  void OnThread(int thread, std::function<void()> run);
  void OnShardMessage(int thread, const PeerId& from, const Message& message);
  // Sets the clocks of shards back to that of the push. Returns what they were.
  std::map<ShardId, Clock> TurnBack(ShardCore& core, const PeerId& from,
                                    const Message& message) const;
  void ForgetInCopies(ShardCore& core) const;
  static void ForgetInstallation(ShardCore& core, const PeerId& from,
                                 const Message& message);
  void TakeView(int thread);
  void OnShardView(int thread, const std::shared_ptr<const View>& view);
  // Something happens to a shard thread; `view` if it is handed one.
  void OnShard(
      int thread, const std::shared_ptr<const View>& view,
      const std::function<void(ShardCore&, ShardCore::Effects*)>& event);
  void FlushSoon(int thread);
  void Flush(int thread);
  void Send(int thread, ShardCore::Effects* effects);
  // The part of a cut gets to the disk while the thread goes on.
  void WritePart(int thread, ShardCore::CutState state);
  void OnWritten(int thread, const ShardCore::CutState& state);
  // The control thread hears of it, and tells the coordinator.
  void Tell(int thread, int32_t cut, const checkpoint::Part& part,
            const std::string& error);
  // What the thread serves at present.
  std::vector<ShardState> ShardsOf(int thread) const;
  // What a shard thread has counted reaches the control thread, a hop later.
  void Report(int thread);
  run::ServerStats Stats(int thread) const;
  run::ThreadLoad Load(int thread) const;
  void Stop(ProcessEnd end, bool drop_sent);
  PeerId ThreadPeer(int thread) const;

  SimContext* const context_;
  SimMachine* const machine_;
  const int index_;
  const PeerId control_peer_;
  PeerId coordinator_;  // That it is connected with.
  ServerCore core_;
  SimLinkTrial links_;
  std::vector<Thread> threads_;
  Plant plant_ = Plant::kNone;
  absl::Time inner_cut_until_ = absl::InfinitePast();
  bool told_to_retire_ = false;
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
