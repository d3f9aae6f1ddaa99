// SIGINT, SIGTERM and SIGHUP as an ordinary call on a thread of its own; SIGHUP
// unless it is ignored, as under nohup.
#pragma once

#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace slackline {

// What a signal asks a member of a job for.
enum class SignalWish {
  kSuspend,  // A checkpoint, then the end of the job.
  kEnd,      // To end at once.
  kNothing,  // What was asked for is under way.
};

// The first signal asks for a checkpoint, if it is SIGTERM or SIGHUP and the
// job is one with checkpoints; every other to end at once, but for SIGHUP,
// since a session that ends may send several. Whoever takes machines away sends
// SIGTERM some time before.
//
// Slurm sends SIGTERM twice when it takes a job away: its daemon to all
// processes on the node, and srun, which gets it as well, to those of its step.
class SignalWishes {
 public:
  struct Options {
    bool with_checkpoints = false;
    bool by_slurm = false;  // SIGTERM soon after another is the same one.
  };
  explicit SignalWishes(const Options& options)
      : options_(options), may_suspend_(options.with_checkpoints) {}
  // `now` is of a clock that nobody sets.
  SignalWish Of(int signal, absl::Time now);

 private:
  const Options options_;
  bool may_suspend_;
  bool first_ = true;
  absl::Time same_until_ = absl::InfinitePast();
};
// For a member of a job with this config.
SignalWishes WishesOfSignals(const config::ClusterConfig& config);

// Calls `on_signal` with the signal's number on a thread of its own, each time.
// A process has one.
class StopSignal {
 public:
  // Blocks these signals, so that they wait until a StopSignal is there: at
  // once for this thread and all threads made after it, and for threads that
  // libraries have made already when a signal reaches them. Call it first in
  // main().
  static void Block();

  explicit StopSignal(std::function<void(int signal)> on_signal);
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

 private:
  int quit_event_;
  std::thread thread_;
};

}  // namespace slackline
