// A whole cluster in one thread, on virtual time, from one seed: runs a
// scenario to its end, with its faults, and says whether everything that must
// hold held.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/stubs/logging.h"
#include "tests/sim/open_requests.h"
#include "tests/sim/run_counts.h"
#include "tests/sim/sim_context.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_stranger.h"
#include "tests/sim/sim_user.h"
#include "tests/sim/sim_worker.h"

namespace slackline::sim {

struct RunReport {
  std::optional<Violation> violation;
  RunCounts counts;
  std::string outcome;           // For people: state of the job and its reason.
  std::vector<std::string> log;  // Empty unless it was asked for.
  std::vector<std::shared_ptr<const SimCheckpoint>> checkpoints;
  std::vector<std::vector<float>> model;  // By table; empty: there is none.
};

class SimWorld {
 public:
  SimWorld(const Scenario& scenario, bool keep_log);

  // Whoever plants a fault gets at the parts before Run().
  SimContext& context() { return context_; }
  // Called when a server or worker has started.
  std::function<void(SimServer* server)> on_server_started;
  std::function<void(SimCoordinator* coordinator)> on_coordinator_started;
  std::function<void(SimWorker* worker)> on_worker_started;

  RunReport Run();

 private:
  void StartServer(int index);
  bool AddServer(int32_t index);
  // A new process in the place of one that has ended.
  void RestartServer(int index, absl::Duration after);
  void StartWorker(int rank);
  void Inject(const FaultEvent& fault);
  void Inject(const CoordinatorFault& fault);
  // It comes back, perhaps with its server, after this time, or in another one.
  void CrashCoordinator(bool with_host, absl::Duration away);
  void RecoverCoordinator(int host, bool has_joined, bool new_process);
  // Of a job whose coordinator any server takes over: when its lease in etcd
  // has run out, and somebody has seen it.
  void TakeOverLater();
  void TakeOver();
  // The server that the coordinator is in, or was when it died.
  int Host() const {
    return coordinator_ == nullptr ? 0 : coordinator_->host();
  }
  Node HostNode() const { return context_.scenario.ServerNode(Host()); }
  bool IsAlive(int server) const;
  // As SimContext::could_be_heard.
  bool CouldBeHeard(const PeerId& member) const;
  void Inject(const StandStillFault& fault);
  void Inject(const ShardStall& stall);
  void Inject(const InnerCut& cut);
  // All of Scenario::reality.
  void ScheduleReality();
  // Which step of a move this message is, and whose.
  struct Seen {
    MoveStep step{};
    int32_t source = 0;  // Servers.
    int32_t target = 0;
  };
  std::optional<Seen> StepOf(const PeerId& from, const PeerId& to,
                             const Message& message) const;
  // False: the message is lost.
  bool Watch(const PeerId& from, const PeerId& to, const Message& message,
             bool arrives);
  void Inject(const MoveFault& fault, const Seen& seen);
  // Likewise of a change of the mode: which step of which worker this is.
  std::optional<std::pair<PhaseStep, int>> PhaseStepOf(
      const PeerId& from, const PeerId& to, const Message& message) const;
  // False: the message is lost. `arrives` is unset where there is none.
  bool WatchPhase(PhaseStep step, int rank, std::optional<bool> arrives);
  void Inject(const PhaseFault& fault, int rank);
  // After the last fault: what was begun must come to its end.
  void CheckLinger();
  Node NodeCount() const;
  SimServer* ServerAt(Node node) const;
  // Starts again the workers whose life has ended and that are to go on.
  void FollowUp();
  // The job begins: its members are connected as they have to be.
  void CheckLinks();
  // A user, long after all else is well.
  void EndWhoIsStuckAlone();
  // After the last fault: whoever has asked for something is answered.
  void CheckRequests();
  // The cut was made; see ExcuseOf().
  void Cut(Node from, Node to, absl::Duration duration, bool held);
  // A worker that has given up had to, and names whom it gave up on.
  void JudgeWhoGaveUp(int rank);
  // Whom the coordinator has removed stood still, or could not reach servers.
  void JudgeRemovals();
  bool StoodStill(int rank) const;
  // Which fault of this run explains that the worker of this rank has given up
  // just now, as `end` says; nullptr: none does, and it is wrong.
  const char* ExcuseOf(int rank, const ProcessEnd& end) const;
  bool AllEnded() const;
  bool NeverStarts(Node node) const;
  void CheckOutcome();
  // The job has failed because servers did not answer the workers that were
  // left; true: faults kept each server that it names from it for so long.
  bool ServersWereAway(const wire::JobEnd& end) const;
  // The bound of gradients ends such jobs, and it was a worker whose gradients
  // are above it.
  bool StoppedByBound(const wire::JobEnd& end) const;
  std::string StatusLines() const;

  // Garbage that is refused is no news.
  google::protobuf::LogSilencer quiet_;
  SimContext context_;
  std::unique_ptr<SimCoordinator> coordinator_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;  // The present life.
  std::vector<bool> restart_pending_;                // By rank.
  std::set<int> server_restart_pending_;
  size_t removals_judged_ = 0;
  std::vector<bool> judged_;  // By rank: this life has given up, and why.
  std::unique_ptr<SimUser> user_;
  std::unique_ptr<SimStranger> stranger_;
  bool coordinator_crashed_ = false;
  bool healed_ = false;
  bool has_begun_ = false;
  bool only_reports_ = false;    // The coordinator, that the job has ended.
  std::vector<int> fault_seen_;  // By fault of the placement.
  std::vector<int> phase_fault_seen_;  // By fault of the modes.
  // Highest position sent, by shard and feed.
  std::map<std::pair<int32_t, std::string>, uint64_t> sent_up_to_;
  std::set<std::pair<int32_t, uint64_t>> gone_;
  std::set<std::pair<int32_t, uint64_t>> under_way_;  // When it healed.
  OpenRequests requests_;
  absl::Time last_look_ = absl::InfinitePast();  // At the requests.
  absl::Time healed_at_ = absl::InfiniteFuture();
  absl::Time calm_since_ = absl::InfiniteFuture();  // Nothing goes wrong since.
  std::map<std::pair<Node, Node>, absl::Duration> longest_cut_;
  std::map<std::pair<Node, Node>, absl::Duration> cut_in_all_;
  RunCounts counts_;
};

// The run of one seed, of one mode or with changes.
RunReport RunSeed(uint64_t seed, bool keep_log,
                  const Reality& reality = Reality::Usual());
RunReport RunModesSeed(uint64_t seed, bool keep_log,
                       const Reality& reality = Reality::Usual());
// A job that leaves checkpoints, and one that goes on from one of them, with
// other servers, and perhaps other workers, steps and modes: the report of the
// second. In some runs nothing goes wrong, and all that the model depends on is
// the same: then it is to be that of the first job, to the last bit.
RunReport RunResumeSeed(uint64_t seed, bool keep_log,
                        const Reality& reality = Reality::Usual());

}  // namespace slackline::sim
