// Load for benchmarks of what happens beside training: workers that only push
// and pull, over real server processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/step_worker.h"
#include "common/mutex.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "tools/cli/job/coordinator_client.h"
#include "tools/cli/process.h"

namespace slackline::bench {

// The only table of such a job; it begins with zeros.
inline constexpr char kLoadTable[] = "table";

struct Load {
  int64_t elements = 0;  // Of the table, float32.
  absl::Duration pace;   // What a worker waits between its steps.
};

struct Interval {
  absl::Time begin;
  absl::Time end;
  double ms() const { return absl::ToDoubleMilliseconds(end - begin); }
};
std::vector<double> MillisecondsOf(const std::vector<Interval>& intervals);

// One worker, with a thread of its own: pushes 1 for every element, pulls
// everything, again and again.
class LoadWorker {
 public:
  static absl::StatusOr<std::unique_ptr<LoadWorker>> Start(
      Transport& transport, const config::ClusterConfig& config,
      const Load& load, int rank);
  ~LoadWorker() { (void)Stop(); }

  // Waits for the end of the step. Returns why a step failed, if one did.
  absl::Status Stop();
  // The steps that have ended since the last call, without the pauses.
  std::vector<Interval> TakeSteps();
  int64_t pushes() const { return pushes_; }
  // After Stop(), once all workers have stopped: everything that they pushed.
  absl::StatusOr<WorkerCore::Parameters> PullAll();

 private:
  LoadWorker(std::unique_ptr<StepWorker> worker, const Load& load);
  absl::Status Work();

  const absl::Duration pace_;
  const std::unique_ptr<StepWorker> worker_;
  Payload gradient_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> pushes_{0};
  Mutex mutex_;
  std::vector<Interval> steps_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_;
  std::thread thread_;
};

// Servers of this build, all workers, and a line to the coordinator.
class LoadCluster {
 public:
  struct Options {
    config::ClusterConfig config;  // Without the coordinator's port.
    Load load;
    std::string folder;  // Is there; for the config and the servers' logs.
    std::vector<std::string> server_flags;  // Beside --cluster and --index.
  };
  // Returns once the job runs.
  static absl::StatusOr<std::unique_ptr<LoadCluster>> Start(
      const Options& options);
  ~LoadCluster() { Stop(); }

  CoordinatorClient& coordinator() { return *coordinator_; }
  const std::vector<ChildProcess>& servers() const { return servers_; }
  // As `kill -9` does.
  void KillServer(int index);
  const std::vector<std::unique_ptr<LoadWorker>>& workers() const {
    return workers_;
  }
  // Of all workers.
  std::vector<Interval> TakeSteps();
  // Ends the workers; how many elements of the final model are not the sum of
  // all pushes. For sgd with a learning rate of 1, up to 2^24 / workers pushes.
  absl::StatusOr<int64_t> CountWrong();
  // Ends the job, and all of its processes.
  void Stop();

 private:
  LoadCluster() = default;

  std::vector<ChildProcess> servers_;
  ZmqTransport transport_;
  std::vector<std::unique_ptr<LoadWorker>> workers_;
  std::unique_ptr<CoordinatorClient> coordinator_;
};

}  // namespace slackline::bench
