// ControlLoop: the control thread of a server. Keeps the server a member of the
// job, hands views to the shard threads and their statistics to the
// coordinator, and leaves when the server is drained.
#pragma once

#include <atomic>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/membership/member_core.h"
#include "common/net/poller.h"
#include "common/net/transport.h"
#include "server/io_load.h"

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

  // Runs until the job has ended, or the server is drained. OK if it FINISHED
  // or is drained; else the sentence that says why not.
  absl::Status Run();

  // Any thread: leaves the job if this server owns nothing and is not the
  // coordinator's; else ends it, because a server takes its shards with it.
  void Interrupt(const std::string& reason);

 private:
  ControlLoop(const Options& options, std::unique_ptr<DealerSocket> coordinator,
              std::vector<std::unique_ptr<DealerSocket>> shard_threads);
  absl::Status Perform(MemberCore::Effects* effects);
  void AskForStats();
  // Takes what the shard threads have sent. True if there is news that the
  // coordinator should not have to wait for.
  bool ReceiveStats();
  // Asks once more and waits, briefly, for every shard thread's answer.
  void CollectLastStats();
  void SendToShardThreads(const Message& message);
  // The job runs, and no shard is here or to come here.
  bool OwnsNothing() const;
  bool Draining() const;

  const Options options_;
  MemberCore member_;
  std::unique_ptr<DealerSocket> coordinator_;
  std::vector<std::unique_ptr<DealerSocket>> shard_threads_;
  Poller poller_;
  Waker waker_;
  std::ofstream trace_;
  std::vector<run::ServerStats> thread_stats_;  // The last of each thread.
  IoLoad io_load_;
  double io_utilisation_ = 0;
  std::optional<uint64_t> leave_call_;  // Once it is drained.
  std::atomic<bool> interrupted_{false};
  std::string interrupt_reason_;  // Written before interrupted_, read after.
};

}  // namespace slackline
