// ControlLoop: the control thread of a server. Keeps the server a member of the
// job, hands views to the shard threads and their statistics to the
// coordinator.
#pragma once

#include <atomic>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/membership/member_core.h"
#include "common/net/poller.h"
#include "common/net/transport.h"

namespace slackline {

class ControlLoop {
 public:
  struct Options {
    MemberCore::Options member;
    std::string coordinator_endpoint;
    std::vector<std::string>
        shard_thread_endpoints;  // ShardThread::control_endpoint().
    std::string trace_file;      // Empty: no trace.
  };
  static absl::StatusOr<std::unique_ptr<ControlLoop>> Create(
      NetContext& context, const Options& options);

  // Runs until the job has ended. OK if it FINISHED; else the sentence that
  // says why not.
  absl::Status Run();

  // Any thread: ends the whole job, because a server takes its shards with it.
  void Interrupt(const std::string& reason);

 private:
  ControlLoop(const Options& options, std::unique_ptr<DealerSocket> coordinator,
              std::vector<std::unique_ptr<DealerSocket>> shard_threads);
  absl::Status Perform(MemberCore::Effects* effects);
  // Asks all shard threads for statistics and waits for them, briefly.
  void CollectStats();
  void SendToShardThreads(const Message& message);

  const Options options_;
  MemberCore member_;
  std::unique_ptr<DealerSocket> coordinator_;
  std::vector<std::unique_ptr<DealerSocket>> shard_threads_;
  Poller poller_;
  Waker waker_;
  std::ofstream trace_;
  std::atomic<bool> interrupted_{false};
  std::string interrupt_reason_;  // Written before interrupted_, read after.
};

}  // namespace slackline
