// What the processes of one simulated run share: time, network, checker, log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "tests/sim/checker.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/scenario.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_network.h"

namespace slackline::sim {

struct SimContext {
  SimContext(const Scenario& s, bool keep_log)
      : scenario(s),
        rng(Rng(s.seed).Fork("world")),
        network(&queue, scenario.network, Rng(s.seed).Fork("network")),
        groups(scenario, &queue, &network),
        checker(scenario),
        logging(keep_log) {
    if (logging) network.log = [this](const std::string& line) { Log(line); };
  }
  SimContext(const SimContext&) = delete;

  template <typename... Parts>
  void Log(const Parts&... parts) {
    if (!logging) return;
    log.push_back(absl::StrCat(
        absl::FormatDuration(queue.now() - absl::UnixEpoch()), "  ", parts...));
  }

  const Scenario scenario;
  EventQueue queue;
  Rng rng;
  SimNetwork network;
  SimGroups groups;
  Checker checker;
  const bool logging;
  std::vector<std::string> log;
  // Workers may do the last step of all.
  bool linger_over = true;
  // A worker is at a step of a change that no message shows.
  std::function<void(PhaseStep step, Rank rank)> on_phase_step;
};

inline constexpr PeerId kCoordinatorPeer{.kind = PeerId::Kind::kCoordinator};

// How the life of a process ended.
struct ProcessEnd {
  enum class Kind {
    kAlive,
    kJobFinished,  // It was told that the job has finished.
    kJobFailed,    // It was told that the job has failed.
    kFenced,       // A worker: it is to join again as a new process would.
    kGaveUp,       // An error of its own, for example a silent coordinator.
    kDrained,      // A server: it has given everything away and has left.
    kCrashed,
  };
  Kind kind = Kind::kAlive;
  std::string what;
};

}  // namespace slackline::sim
