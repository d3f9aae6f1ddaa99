// CheckpointThread: completes checkpoints, keeps the best one, and removes what
// is left of those that were given up, on a thread of its own: a disk may take
// its time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/best_checkpoint.h"
#include "proto/checkpoint.pb.h"
#include "proto/run.pb.h"

namespace slackline {

class CheckpointThread {
 public:
  struct Options {
    std::string root;
    uint64_t run = 0;
    int keep = 3;
    // `lineage` and `best` are as BestKeeper has them, for KeepBest().
    uint64_t lineage = 0;
    std::optional<run::BestCheckpoint> best = std::nullopt;
    // StateStore::LeadCheck(): from when it says no, and from when this is
    // gone, nothing is changed any more: another coordinator may be there.
    std::function<bool()> leads = [] { return true; };
    // Called on its thread when there is news to be taken, or nothing is left
    // to do. It waits for nothing.
    std::function<void()> on_news;
  };
  struct Result {
    int32_t cut = 0;
    absl::StatusOr<std::string> folder;
  };
  // What has not been taken yet.
  struct News {
    std::vector<Result> results;              // What Complete() gave.
    std::optional<run::BestCheckpoint> best;  // Another one than before.
    std::vector<std::string> warnings;        // Sentences.
  };
  explicit CheckpointThread(Options options);
  // If a disk does not answer, the thread is left behind with it, for as long
  // as the process lives. It changes nothing more.
  ~CheckpointThread();
  CheckpointThread(const CheckpointThread&) = delete;
  CheckpointThread& operator=(const CheckpointThread&) = delete;

  // These wait for nothing; what they ask for is done in that order.
  void Complete(int32_t cut, checkpoint::Manifest manifest);
  void Remove(int32_t cut);
  void KeepBest(run::BestCheckpoint evaluation);

  News TakeNews();
  // What is under way, as in "completing the checkpoint of step 12 in ROOT".
  // Empty: nothing is left to do.
  std::string Doing() const;

 private:
  struct Task {
    std::string what;  // What Doing() says.
    std::function<void(BestKeeper*, News*)> perform;
    bool completes = false;
  };
  // What this shares with the thread, which may outlive it.
  struct Shared;
  void Add(Task task);
  static void Run(const std::shared_ptr<Shared>& shared);

  const Options options_;
  const std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace slackline
