// What the processes of one simulated run share: time, network, checker, log.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "tests/sim/checker.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/feed_watch.h"
#include "tests/sim/job/scenario.h"
#include "tests/sim/job/sim_checkpoint.h"
#include "tests/sim/sim_gathers.h"
#include "tests/sim/sim_group.h"
#include "tests/sim/sim_machine.h"
#include "tests/sim/sim_network.h"

namespace slackline::sim {

struct SimContext {
  SimContext(const Scenario& s, bool keep_log)
      : scenario(s),
        machines(scenario, &queue),
        rng(Rng(s.seed).Fork("world")),
        network(&queue, &machines, scenario, Rng(s.seed).Fork("network")),
        groups(scenario, &queue, &network),
        checker(scenario),
        gathers([this](const std::string& what) {
          checker.Report(Invariant::kGathers, what);
        }),
        feeds(
            scenario,
            [this](const std::string& what) {
              checker.Report(Invariant::kSentAgain, what);
            },
            [this](const std::string& what) {
              checker.Report(Invariant::kUnread, what);
            }),
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
  // True time: whatever is part of a process goes by its machine's instead.
  EventQueue queue;
  SimMachines machines;
  Rng rng;
  SimNetwork network;
  SimGroups groups;
  Checker checker;
  SimGathers gathers;
  FeedWatch feeds;
  SimFolder folder;  // Of checkpoints.
  // How long the next file of a checkpoint takes to get to the disk.
  absl::Duration WriteTime() {
    const Checkpoints& checkpoints = scenario.checkpoints;
    const double part = files_.Uniform();
    if (!files_.Chance(checkpoints.slow)) return part * absl::Milliseconds(5);
    ++slow_files;
    return part * checkpoints.slow_max;
  }
  // From the thread that writes it to the one that tells the coordinator.
  absl::Duration WriteHop() {
    return absl::Microseconds(files_.Between(0, 1000));
  }
  // Members that have heard a coordinator at an address that it has left, which
  // the network can do that repeats a message late. They look for the next one
  // a lease after that.
  std::set<PeerId> misled;
  // A member has a message of the coordinator that it is connected with.
  void OnCoordinatorHeard(const PeerId& member, const PeerId& coordinator) {
    if (coordinator != CoordinatorAt(coordinator.index)) misled.insert(member);
  }
  const bool logging;
  std::vector<std::string> log;
  // Workers may do the last step of all.
  bool linger_over = true;
  // How much longer than usual this step takes, this time.
  absl::Duration TrainerStallOf(Rank rank, Clock clock) {
    absl::Duration stall;
    for (size_t i = 0; i < scenario.trainer_stalls.size(); ++i) {
      const TrainerStall& fault = scenario.trainer_stalls[i];
      if (fault.rank != rank || fault.clock != clock ||
          !stalled_.insert(i).second) {
        continue;
      }
      ++trainer_stalls;
      trainer_stalls_for_ever += fault.duration == absl::InfiniteDuration();
      Log("the trainer of rank ", static_cast<int>(rank), " stalls at clock ",
          clock, " for ", absl::FormatDuration(fault.duration));
      stall += fault.duration;
    }
    return stall;
  }
  // Whether such a file can be written now.
  bool CanWrite(DiskFault::File file) {
    const absl::Duration since_start = queue.now() - absl::UnixEpoch();
    for (const DiskFault& fault : scenario.disk) {
      if (fault.file != file || since_start < fault.at ||
          since_start >= fault.at + fault.duration) {
        continue;
      }
      ++disk_errors;
      return false;
    }
    return true;
  }
  int64_t trainer_stalls = 0;
  int64_t trainer_stalls_for_ever = 0;
  int64_t disk_errors = 0;        // Attempts to write that failed.
  int64_t slow_files = 0;         // Of checkpoints.
  int64_t torn_logs = 0;          // Of the coordinator's state.
  int64_t links_missed = 0;       // As of RunCounts.
  std::set<int32_t> failed_cuts;  // A file of these could not be written.

  // For planted faults: what the coordinator is said to keep.
  std::function<void(CoordinatorCore::Sizes* sizes)> tamper_sizes;
  // Likewise, what it says of a checkpoint.
  std::function<void(checkpoint::Manifest* manifest)> tamper_manifest;
  // Likewise: it takes a checkpoint for whole of which no file is there.
  bool completes_without_files = false;
  // What the name of server 0's host means by now, of all that it has meant.
  // Who is connected to another one reaches nobody.
  uint64_t server_0_address = 0;
  PeerId CoordinatorAt(int host) const;
  // Whether this member lives, and nothing has kept it from being heard in this
  // run.
  std::function<bool(const PeerId& member)> could_be_heard;
  // A worker is at a step of a change that no message shows.
  std::function<void(PhaseStep step, Rank rank)> on_phase_step;

 private:
  std::set<size_t> stalled_;  // Trainer stalls that have happened.
  Rng files_{Rng(scenario.seed).Fork("files of checkpoints")};
};

// The coordinator while it is in server `host`, at one of the addresses that
// the name of that server has had.
inline constexpr PeerId CoordinatorPeer(int host, uint64_t address) {
  return {
      .kind = PeerId::Kind::kCoordinator, .index = host, .instance = address};
}

inline PeerId SimContext::CoordinatorAt(int host) const {
  return CoordinatorPeer(host, host == 0 ? server_0_address : 0);
}

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
  std::string what;                         // For people.
  absl::StatusCode code{};                  // Of kGaveUp.
  wire::JoinReply::Obstacle obstacle = {};  // Why it had no place in the job.
};

}  // namespace slackline::sim
