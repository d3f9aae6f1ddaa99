// A simulated server process: its member core, its shard cores, and in server 0
// the coordinator. Decides nothing that a real driver does not decide.
#pragma once

#include <map>
#include <memory>
#include <optional>
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
  void Crash();
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
  std::map<Incarnation, PeerId> joined_;   // All that ever were told so.
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
  // Planted fault: the shard threads are shown views in which nobody ever
  // leaves.
  void HideLossesFromThreads() { hide_losses_ = true; }
  std::string StatusLine() const;

 private:
  struct Thread {
    std::unique_ptr<ShardCore> core;
    bool flush_pending = false;
    absl::Time view_arrives;            // Of the last view on its way.
    std::shared_ptr<const View> shown;  // With hide_losses_, the last one.
  };

  void Perform(MemberCore::Effects* effects);
  void OnShardMessage(int thread, const PeerId& from, const Message& message);
  void OnShardView(int thread, const std::shared_ptr<const View>& view);
  void FlushSoon(int thread);
  void Send(int thread, ShardCore::Effects* effects);
  void Stop(ProcessEnd end, bool drop_sent);
  PeerId ThreadPeer(int thread) const;

  SimContext* const context_;
  const int index_;
  const PeerId control_peer_;
  MemberCore member_;
  std::vector<Thread> threads_;
  bool hide_losses_ = false;
  ProcessEnd end_;
  Alarm alarm_;
  Lifetime lifetime_;
};

}  // namespace slackline::sim
