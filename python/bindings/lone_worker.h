// A worker without a job, for a Python program.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/optim/step_options.h"
#include "python/bindings/parameters.h"
#include "worker/session/lone_session.h"

namespace slackline::python {

// Throws a ValueError for what the caller gave, a JobError where a job would
// end. Thread-compatible.
class LoneWorker {
 public:
  LoneWorker(std::shared_ptr<Parameters> parameters,
             const LoneSession::Options& options);

  // As Worker::Next(), BeginWith() and OptimizerState().
  std::optional<Session::Task> Next();
  void BeginWith(
      const std::vector<std::pair<int64_t, std::vector<FloatArray>>>& states);
  std::vector<TableState> OptimizerState() const {
    return session_->OptimizerState();
  }
  // The end of the step, without the GIL. One for each table; none: its
  // optimizer does nothing. A step that is finished already stays as it is:
  // a script that was interrupted behind it does not know.
  void FinishStep(const std::vector<std::optional<FloatArray>>& gradients,
                  const std::vector<StepOptions>& options);
  Clock clock() const { return session_->clock(); }

 private:
  const std::shared_ptr<Parameters> parameters_;
  const std::unique_ptr<LoneSession> session_;
};

}  // namespace slackline::python
