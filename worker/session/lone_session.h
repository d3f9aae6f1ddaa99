// LoneSession: a worker without a job, for its program: the tasks of a Session,
// in the order that LoneSteps decides, and the optimizer's arithmetic in this
// process. Nobody is told anything.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/optim/schedule.h"
#include "common/optim/step_options.h"
#include "common/optim/update_rule.h"
#include "worker/core/lone_steps.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/session.h"
#include "worker/session/table_state.h"

namespace slackline {

class LoneSession {
 public:
  struct Options {
    LearningRateSchedule::JobLength length;
    std::optional<ElasticSampling> elastic = {};  // As in Session::Options.
  };
  // The parameters are the host's, each with an optimizer, and outlive the
  // session. InvalidArgument: an optimizer that cannot be.
  static absl::StatusOr<std::unique_ptr<LoneSession>> Create(
      const Options& options, ParameterMemory* parameters);

  // As Session::BeginWith().
  absl::Status BeginWith(const std::vector<TableState>& states);

  // A step, an evaluation or the conclusion; none after that, and when ending()
  // is not OK. A step that was not finished comes again.
  std::optional<Session::Task> Next();
  // FailedPrecondition: a gradient had a NaN or an infinity, which ends a job
  // unless its config says otherwise. It is not in the model.
  const absl::Status& ending() const { return ending_; }

  struct Gradient {
    // As many as the table has elements; null: its optimizer does nothing in
    // this step.
    const float* values = nullptr;
    StepOptions options = {};
  };
  // `gradients` has one for each table. InvalidArgument names the table and
  // what does not fit as of Session::Gradient(); nothing happened. Else what
  // ending() says. A step that is finished already stays as it is.
  absl::Status FinishStep(absl::Span<const Gradient> gradients);

  // A copy of what the optimizer keeps of each table.
  std::vector<TableState> OptimizerState() const;

  // Steps completed.
  Clock clock() const { return steps_.clock(); }

 private:
  // What the optimizer of a table keeps.
  struct State {
    int64_t updates = 0;
    std::vector<std::vector<float>> slots;
  };
  LoneSession(const Options& options, ParameterMemory* parameters,
              std::vector<UpdateRule> rules);
  bool IsFinite(size_t table, const Gradient& gradient);
  void Apply(size_t table, const Gradient& gradient);

  ParameterMemory& parameters_;
  const std::vector<UpdateRule> rules_;  // By table.
  std::vector<State> states_;            // By table.
  LoneSteps steps_;
  absl::Status ending_;
};

}  // namespace slackline
