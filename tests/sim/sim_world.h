// A whole cluster in one thread, on virtual time, from one seed: runs a
// scenario to its end, with its faults, and says whether everything that must
// hold held.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_context.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/sim_user.h"
#include "tests/sim/sim_worker.h"

namespace slackline::sim {

// What happened, to be summed over runs: a simulation in which nothing goes
// wrong any more must be noticed.
struct RunCounts {
  NetworkStats network;
  CheckerStats checker;
  SimWorker::Counts workers;
  int64_t runs = 0;
  int64_t events = 0;
  int64_t finished = 0;
  int64_t failed = 0;  // The job failed, and had to.
  int64_t coordinator_lost =
      0;  // Server 0 died or was cut off from all others.
  // At first.
  int64_t bsp = 0, ssp = 0, asp = 0, allreduce = 0, dssp = 0, backup = 0;
  int64_t cuts = 0;
  int64_t crashes = 0;
  int64_t server_crashes = 0;
  int64_t restarts = 0;
  int64_t fenced = 0;   // Lives that were told to join again.
  int64_t gave_up = 0;  // Lives that ended with an error of their own.
  SimUser::Counts user;
  int64_t servers_added = 0;    // Those that have joined.
  int64_t servers_drained = 0;  // Those that have left.
  int64_t gos = 0;              // Moves whose source has said go.
  int64_t records_resent = 0;   // Messages.
  int64_t lost_on_the_way = 0;  // Jobs that failed because of that.
  int64_t lingered = 0;         // All moves came to their end in the job.
  std::array<int64_t, kMoveSteps> steps = {};         // Messages seen.
  std::array<int64_t, kMoveSteps> step_faults = {};   // Injected just then.
  std::array<int64_t, kMoveSteps> step_crashes = {};  // Of those: crashes.

  // Likewise, by step of a change of the mode.
  std::array<int64_t, kPhaseSteps> phase_steps = {};
  std::array<int64_t, kPhaseSteps> phase_faults = {};
  std::array<int64_t, kPhaseSteps> phase_crashes = {};

  void Add(const RunCounts& other);
  std::string ToString() const;
};

struct RunReport {
  std::optional<Violation> violation;
  RunCounts counts;
  std::string outcome;           // For people: state of the job and its reason.
  std::vector<std::string> log;  // Empty unless it was asked for.
};

class SimWorld {
 public:
  SimWorld(const Scenario& scenario, bool keep_log);

  // Whoever plants a fault gets at the parts before Run().
  SimContext& context() { return context_; }
  // Called when a server or worker has started.
  std::function<void(SimServer* server)> on_server_started;
  std::function<void(SimWorker* worker)> on_worker_started;

  RunReport Run();

 private:
  void StartServer(int index);
  bool AddServer(int32_t index);
  void StartWorker(int rank);
  void Inject(const FaultEvent& fault);
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
  bool AllEnded() const;
  bool NeverStarts(Node node) const;
  void CheckOutcome();
  std::string StatusLines() const;

  SimContext context_;
  std::unique_ptr<SimCoordinator> coordinator_;
  std::vector<std::unique_ptr<SimServer>> servers_;
  std::vector<std::unique_ptr<SimWorker>> workers_;  // The present life.
  std::vector<bool> restart_pending_;                // By rank.
  std::unique_ptr<SimUser> user_;
  bool coordinator_crashed_ = false;
  bool healed_ = false;
  std::vector<int> fault_seen_;        // By fault of the placement.
  std::vector<int> phase_fault_seen_;  // By fault of the modes.
  // Highest position sent, by shard and move.
  std::map<std::pair<int32_t, uint64_t>, uint64_t> sent_up_to_;
  std::set<std::pair<int32_t, uint64_t>> gone_;
  std::set<std::pair<int32_t, uint64_t>> under_way_;  // When it healed.
  RunCounts counts_;
};

// The run of one seed, of one mode or with changes.
RunReport RunSeed(uint64_t seed, bool keep_log);
RunReport RunModesSeed(uint64_t seed, bool keep_log);

}  // namespace slackline::sim
