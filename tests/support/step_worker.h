// A worker without a model, for benchmarks and tests: the product's WorkerLoop,
// whose steps over servers the caller does by hand.
#pragma once

#include <memory>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "common/status.h"
#include "worker/session/worker_loop.h"

namespace slackline::bench {

// Enough for a benchmark that never comes to the end of the job.
inline constexpr int64_t kManySteps = int64_t{1} << 40;

class StepWorker {
 public:
  static absl::StatusOr<std::unique_ptr<StepWorker>> Start(
      Transport& to_coordinator, Transport& to_shard_threads,
      WorkerLoop::Options options) {
    options.core.evaluate_every = kManySteps;
    SL_ASSIGN_OR_RETURN(
        std::unique_ptr<WorkerLoop> loop,
        WorkerLoop::Start(to_coordinator, to_shard_threads, options));
    return std::unique_ptr<StepWorker>(new StepWorker(std::move(loop)));
  }

  // Waits for the parameters of the next step, which contain all pushes of this
  // worker.
  absl::StatusOr<WorkerCore::Parameters> Pull() {
    while (const auto action = loop_->Next()) {
      if (const auto* const step = std::get_if<WorkerCore::Compute>(&*action))
        return step->parameters;
    }
    return loop_->ending();
  }
  // The step's gradient of the job's only table. The pull of the next one's
  // parameters is on its way when this returns.
  absl::Status Push(const Payload& gradient) {
    SL_RETURN_IF_ERROR(loop_->Push(TableId{0}, gradient, StepOptions()));
    loop_->Tell(
        [](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.OnComputed(/*loss=*/0, now, effects);
        });
    return absl::OkStatus();
  }

 private:
  explicit StepWorker(std::unique_ptr<WorkerLoop> loop)
      : loop_(std::move(loop)) {}
  const std::unique_ptr<WorkerLoop> loop_;
};

}  // namespace slackline::bench
