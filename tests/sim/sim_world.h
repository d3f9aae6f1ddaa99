// A whole cluster in one thread, on virtual time, from one seed: runs a
// scenario to its end, with its faults, and says whether everything that must
// hold held.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/sim_context.h"
#include "tests/sim/sim_server.h"
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
  int64_t bsp = 0, ssp = 0, asp = 0;
  int64_t cuts = 0;
  int64_t crashes = 0;
  int64_t server_crashes = 0;
  int64_t restarts = 0;
  int64_t fenced = 0;   // Lives that were told to join again.
  int64_t gave_up = 0;  // Lives that ended with an error of their own.

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
  // Called when a server has started.
  std::function<void(SimServer* server)> on_server_started;

  RunReport Run();

 private:
  void StartServer(int index);
  void StartWorker(int rank);
  void Inject(const FaultEvent& fault);
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
  bool server0_crashed_ = false;
  RunCounts counts_;
};

// The run of one seed.
RunReport RunSeed(uint64_t seed, bool keep_log);

}  // namespace slackline::sim
