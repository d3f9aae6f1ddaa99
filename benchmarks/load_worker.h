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
#include "common/mutex.h"
#include "common/net/process/process_transport.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "tests/support/step_worker.h"
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

// Until which step the workers go: in BSP all of them have to go equally far.
// Any thread may call anything.
class StepLimit {
 public:
  // Whether a worker that has done so many steps begins another one.
  bool MayBegin(int64_t done);
  // Nobody goes further than some worker has gone already.
  void Close();

 private:
  Mutex mutex_;
  int64_t begun_ ABSL_GUARDED_BY(mutex_) = 0;  // By whoever is furthest.
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// One worker, with a thread of its own: pushes 1 for every element, pulls
// everything, again and again. `limit` outlives it.
class LoadWorker {
 public:
  static absl::StatusOr<std::unique_ptr<LoadWorker>> Start(
      Transport& transport, const config::ClusterConfig& config,
      const Load& load, int rank, StepLimit& limit);
  ~LoadWorker() { (void)Stop(); }

  // Closes the limit, and waits for the end of the last step. Returns why a
  // step failed, if one did.
  absl::Status Stop();
  // The steps that have ended since the last call, without the pauses.
  std::vector<Interval> TakeSteps();
  int64_t pushes() const { return pushes_; }
  // Once all workers have stopped: one more step, of which PushZeros() comes
  // first, of all workers. The parameters then have everything that they
  // pushed.
  absl::Status PushZeros();
  absl::StatusOr<WorkerCore::Parameters> Pull() { return worker_->Pull(); }

 private:
  LoadWorker(std::unique_ptr<StepWorker> worker, const Load& load,
             StepLimit& limit);
  absl::Status Work();

  const absl::Duration pace_;
  const std::unique_ptr<StepWorker> worker_;
  Payload gradient_;
  StepLimit& limit_;
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
  std::optional<ProcessTransport> transports_;
  StepLimit limit_;
  std::vector<std::unique_ptr<LoadWorker>> workers_;
  std::unique_ptr<CoordinatorClient> coordinator_;
};

}  // namespace slackline::bench
