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
#include "server/coordinator/coordinator_core.h"
#include "server/shard/shard_core.h"
#include "tests/sim/sim_context.h"

namespace slackline::sim {

// What servers and workers have in common.
MemberCore::Options MemberOptions(const Scenario& scenario);

class SimCoordinator {
 public:
  explicit SimCoordinator(SimContext* context);
  ~SimCoordinator();

  const CoordinatorCore& core() const { return core_; }
  void Crash();  // Of its thread alone, or with server 0.
  // Views no longer reach those who did not follow yet: the process has ended.
  bool over() const { return over_; }

 private:
  void OnMessage(const PeerId& from, const Message& message);
  void Perform(CoordinatorCore::Effects* effects);
  // Nobody leaves the view who was heard within the lease.
  void CheckRemovals(const wire::View& view);

  SimContext* const context_;
  CoordinatorCore core_;
  std::map<PeerId, absl::Time> heard_;
  std::map<Incarnation, PeerId> members_;  // Of the last view.
  wire::View last_view_;
  std::map<Incarnation, PeerId> joined_;  // All that ever were told so.
  std::set<Incarnation> gave_up_;         // And said so.
  bool over_ = false;
  Alarm alarm_;
  Lifetime lifetime_;
};

class SimServer {
 public:
  SimServer(SimContext* context, int index, uint64_t token);
  ~SimServer();

  void Crash(bool drop_sent);
  const ProcessEnd& end() const { return end_; }
  bool joined() const { return member_.view() != nullptr; }
  // What may be broken on purpose.
  enum class Plant {
    kNone,
    kHideLosses,      // Shard threads see views in which nobody ever leaves.
    kServeOn,         // They go on serving a shard that they have given away.
    kForgetSequence,  // They cut shards without the sequence numbers.
    kInstallAgain,    // They forget that a shard was installed.
    kLooseBounds,     // They take those of DSSP and BACKUP for larger.
    kTakeLate,        // They take late gradients of BACKUP as if in time.
  };
  void SetPlant(Plant plant) { plant_ = plant; }
  std::string StatusLine() const;

 private:
  struct Thread {
    std::unique_ptr<ShardCore> core;
    std::unique_ptr<Alarm> alarm;
    bool flush_pending = false;
    absl::Time view_arrives;            // Of the last view on its way.
    std::shared_ptr<const View> shown;  // With kHideLosses, the last one.
  };

  void Perform(MemberCore::Effects* effects);
  void OnShardMessage(int thread, const PeerId& from, const Message& message);
  // Sets the clocks of shards back to that of the push. Returns what they were.
  std::map<ShardState*, Clock> TurnBack(ShardCore& core, const PeerId& from,
                                        const Message& message) const;
  static void ForgetInstallation(ShardCore& core, const PeerId& from,
                                 const Message& message);
  void OnShardView(int thread, const std::shared_ptr<const View>& view);
  // Something happens to a shard thread; `view` if it is handed one.
  void OnShard(
      int thread, const std::shared_ptr<const View>& view,
      const std::function<void(ShardCore&, ShardCore::Effects*)>& event);
  void FlushSoon(int thread);
  void Send(int thread, ShardCore::Effects* effects);
  void ReportSoon();
  run::ServerStats Stats() const;
  run::ThreadLoad Load(int thread) const;
  bool Drained() const;
  void Stop(ProcessEnd end, bool drop_sent);
  PeerId ThreadPeer(int thread) const;

  SimContext* const context_;
  const int index_;
  const PeerId control_peer_;
  MemberCore member_;
  std::vector<Thread> threads_;
  Plant plant_ = Plant::kNone;
  bool report_pending_ = false;
  std::optional<uint64_t> leave_call_;  // Once it is drained.
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
