// A worker of a session, from joining the job to the end of that: what Session
// has in its source files alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/compress/gradient_compressor.h"
#include "common/config/cluster_config.h"
#include "common/optim/schedule.h"
#include "common/sync/phases.h"
#include "common/timeline/event_names.h"
#include "worker/conditions/pacer.h"
#include "worker/session/group_round.h"
#include "worker/session/lanes.h"
#include "worker/session/own_parts.h"
#include "worker/session/run_report.h"
#include "worker/session/server_round.h"
#include "worker/session/session.h"
#include "worker/session/step_round.h"
#include "worker/session/worker_loop.h"

namespace slackline {

// What is made once of the options.
struct Session::Parts {
  WorkerProcess self;
  LearningRateSchedule schedule;
  GradientCompressor compressor;  // Each life begins with a copy.
  Lanes lanes;
  WorkerLoop::Options loop;
};

// One life of the worker, from joining to its end: performs the core's actions.
// The session's thread is its only one.
struct Session::Life {
  struct OpenStep {
    Clock clock = 0;
    StepRound* round = nullptr;
    absl::Time begin;                  // When it began, sleeping included.
    absl::Time computing;              // When it began, sleeping left out.
    std::vector<bool> has_parameters;  // By table.
    std::vector<bool> has_gradient;    // By table.
    absl::Duration waited;             // For parameters, since it began.
    // It was given when its first table had come, for which WaitFor() accounts;
    // as WorkerCore::Compute.
    bool begun_without = false;
    absl::Time acknowledged = absl::InfinitePast();
    int64_t examples = 0;
  };

  Life(Session* owner, std::shared_ptr<WorkerLoop> to_loop)
      : session(*owner),
        options(owner->options_),
        parts(*owner->parts_),
        parameters(owner->parameters_),
        loop_owner(std::move(to_loop)),
        loop(*loop_owner),
        compressor(parts.compressor),
        report({.rank = options.rank,
                .steps_per_epoch = options.length.steps_per_epoch,
                .track = owner->timeline_->TrackOf(timeline_names::kTrainer)},
               &loop),
        pacer({.slowdown = parts.self.slowdown,
               .conditions = parts.self.conditions,
               .seed = static_cast<uint64_t>(options.config.train().seed()),
               .rank = options.rank}),
        over_servers(&compressor, &loop, &report, Counts()),
        by_group({.session = options,
                  .self = parts.self,
                  .schedule = parts.schedule,
                  .lanes = parts.lanes,
                  .to_shard_threads = owner->to_shard_threads_,
                  .timeline = *owner->timeline_},
                 &parameters, &loop, &report, Counts()),
        own_parts(
            {.config = options.config,
             .out = options.out,
             .rank = options.rank,
             .keeps_state = options.keeps_state,
             .track = owner->timeline_->TrackOf(timeline_names::kCheckpoints)},
            &loop, &parameters) {}

  std::optional<Task> Next();
  // The program has done all that it had to do in its last step.
  void SayAsked();
  absl::Status WaitFor(int table);
  absl::Status Gradient(int table, Payload gradient,
                        const StepOptions& options);
  absl::Status SkipTable(int table);
  // InvalidArgument unless the open step needs something of the table.
  absl::Status CheckUndone(int table) const;
  absl::Status FinishStep(std::optional<double> loss);
  absl::StatusOr<Gathered> Gather(const GatherCall& call,
                                  const Payload& payload,
                                  absl::Time give_up_at);
  absl::StatusOr<std::vector<TableState>> OptimizerState();
  absl::Status FetchParameters();
  absl::StatusOr<WorkerCore::Parameters> Fetch(StateParts what);
  // Performs, while the program stands at a gather, what goes on meanwhile.
  absl::Status ActAtGather();
  void Save();

  // What comes back, if it is not OK, is the worker's failure. `*task` is set
  // if the caller has to do the rest.
  absl::Status Perform(const WorkerCore::Initialize& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::Compute& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::Reduce& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::Evaluate& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::KeepState& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::KeepProgram& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::Conclude& action,
                       std::optional<Task>* task);
  absl::Status Perform(const WorkerCore::Save& action,
                       std::optional<Task>* task);
  // All others: they need neither the program nor anything of the step.
  template <typename Action>
  absl::Status Perform(const Action& action, std::optional<Task>*) {
    return by_group.Perform(action);
  }

  // The task before the first one of the session, if there is one.
  absl::Status BeginWithOwn(std::optional<Task>* task);

  absl::Status CheckTable(int table) const;
  absl::Status BeginStep(Clock clock, StepRound* round, bool keeps_model,
                         const std::optional<ExampleRange>& examples,
                         std::optional<Task>* task);
  // Where all have come to, at the end of the job.
  Clock end() const { return EndOf(loop.view()->proto()); }
  // So many steps are complete, however that came; the last ones were perhaps
  // not done by this worker.
  void ReachedClock(Clock reached);
  void StepDone(const StepRound::End& done);
  std::function<void(const StepRound::End&)> Counts() {
    return [this](const StepRound::End& done) { StepDone(done); };
  }
  void CloseStep();

  Session& session;
  const Options& options;
  const Parts& parts;
  ParameterMemory& parameters;
  const std::shared_ptr<WorkerLoop> loop_owner;
  WorkerLoop& loop;
  GradientCompressor compressor;
  RunReport report;
  Pacer pacer;
  std::optional<absl::Time> running_since;  // When the first action came.
  absl::Duration last_compute;              // Without sleeping.
  absl::Duration waited;                    // For the last action.
  Clock clock = 0;                          // The largest that was reported.
  std::optional<OpenStep> step;
  // What was to be evaluated while the program stood at a gather.
  std::deque<Task> evaluations;
  bool concluding = false;
  // What a step can be.
  ServerRound over_servers;
  GroupRound by_group;
  run::Result result;        // The final model's.
  std::string final_scores;  // For people; ends with a comma if there are any.
  OwnParts own_parts;        // Ends first: it tells the loop.
};

}  // namespace slackline
