#include "worker/session/session_life.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/optim/step_options.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "worker/conditions/bad_gradient.h"

namespace slackline {
namespace {

// How often a worker that waits for others in a collective looks around.
constexpr absl::Duration kGatherLook = absl::Milliseconds(200);

}  // namespace

std::optional<Session::Task> Session::Life::Next() {
  if (step.has_value() || concluding) {
    session.Fail(absl::FailedPreconditionError(
        step.has_value()
            ? absl::StrCat("step ", step->clock, " was not finished")
            : "the trained model was not evaluated"));
    CloseStep();
    concluding = false;
  }
  while (true) {
    if (const auto keep = own_parts.Ask(); keep.has_value())
      return Keep{.cut = keep->cut, .last = keep->last};
    const absl::Time asked = loop.Now();
    report.time().Computed(asked);
    SayAsked();
    if (!evaluations.empty() && loop.ending().ok()) {
      const Task task = std::move(evaluations.front());
      evaluations.pop_front();
      return task;
    }
    std::unique_ptr<const WorkerCore::Action> action = loop.Next();
    if (action == nullptr) return std::nullopt;
    if (!std::exchange(session.begun_, true)) {
      std::optional<Task> first;
      if (const absl::Status begun = BeginWithOwn(&first); !begun.ok())
        session.StopJob(begun);
      loop.PutBack(std::move(action));
      if (first.has_value()) return first;
      continue;
    }
    const absl::Time now = loop.Now();
    // Until then it waited for the job to start.
    waited = running_since.has_value() ? now - asked : absl::ZeroDuration();
    report.time().Idled(now);
    if (!running_since.has_value()) running_since = now;
    report.time().Start(now);
    std::optional<Task> task;
    const absl::Status done = std::visit(
        [&](const auto& what) { return Perform(what, &task); }, *action);
    // Without effect if that is only what ends the worker anyhow.
    if (!done.ok()) {
      session.Fail(done);
    } else if (task.has_value()) {
      return task;
    }
  }
}

void Session::Life::SayAsked() {
  loop.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnAsked(now, effects);
  });
}

void Session::Life::ReachedClock(Clock reached) {
  if (reached <= clock) return;
  clock = reached;
  report.SkippedTo(reached);
}

void Session::Life::StepDone(const StepRound::End& done) {
  clock = done.clock + 1;
  session.initial_state_.clear();
  if (done.loss.has_value()) report.AddLoss(*done.loss);
  report.StepDone(clock, done.examples);
}

// ---- Steps

absl::Status Session::Life::BeginStep(
    Clock of, StepRound* round, bool keeps_model,
    const std::optional<ExampleRange>& examples, std::optional<Task>* task) {
  if (options.elastic.has_value() &&
      (!examples.has_value() || examples->epoch < 0 || examples->begin < 0 ||
       examples->begin >= examples->end ||
       examples->end > options.elastic->examples ||
       examples->size() > options.elastic->batch_size)) {
    return absl::InternalError(absl::StrCat("the coordinator gave step ", of,
                                            " examples that there are not"));
  }
  const config::Conditions& conditions = parts.self.conditions;
  const absl::Time begin = loop.Now();
  const absl::Duration sleep =
      pacer.SleepBefore(of, last_compute, begin - *running_since);
  if (sleep > absl::ZeroDuration()) SL_RETURN_IF_ERROR(loop.Sleep(sleep));
  if (conditions.has_stall_at_step() && of >= conditions.stall_at_step()) {
    spdlog::warn("stands still at step {}, as conditions.stall_at_step says",
                 of);
    absl::SleepFor(absl::InfiniteDuration());
  }
  step = OpenStep{
      .clock = of,
      .round = round,
      .begin = begin,
      .computing = loop.Now(),
      .has_parameters = std::vector<bool>(parameters.tables().size(), true),
      .has_gradient = std::vector<bool>(parameters.tables().size()),
      .waited = absl::ZeroDuration(),
      .examples = examples.has_value() ? examples->size() : options.batch_size};
  *task = Step{.clock = of,
               .kind = round->kind(),
               .keeps_model = keeps_model,
               .on_device = round->on_device(),
               .last_table_first = round->last_table_first(),
               .examples = examples};
  return absl::OkStatus();
}

absl::Status Session::Life::CheckTable(int table) const {
  const size_t tables = parameters.tables().size();
  if (table >= 0 && static_cast<size_t>(table) < tables)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table ", table, " is outside [0, ", tables, ")"));
}

absl::Status Session::Life::WaitFor(int table) {
  SL_RETURN_IF_ERROR(CheckTable(table));
  const auto index = static_cast<size_t>(table);
  if (!step.has_value() || step->has_parameters[index]) return absl::OkStatus();
  const absl::Time asked = loop.Now();
  SL_ASSIGN_OR_RETURN(const TableValues values,
                      loop.WaitForTable(TableId{table}));
  const absl::Time got = loop.Now();
  const absl::Duration waited_for_it = got - asked;
  report.time().Computed(asked);
  if (std::exchange(step->begun_without, false))  // When this had come.
    report.time().Granted(values.parked, step->acknowledged);
  report.time().PulledBehind(values.parked, got);
  step->waited += waited_for_it;
  report.AddWaitSeconds(absl::ToDoubleSeconds(waited_for_it));
  int64_t element = 0;
  for (const TableValues::Piece& piece : values.pieces) {
    parameters.Load(table, element, piece.values);
    element += static_cast<int64_t>(piece.values.size() / sizeof(float));
  }
  step->has_parameters[index] = true;
  return absl::OkStatus();
}

absl::Status Session::Life::Gradient(int table, Payload gradient,
                                     const StepOptions& options) {
  if (!step.has_value())
    return absl::FailedPreconditionError("no step is open");
  SL_RETURN_IF_ERROR(CheckTable(table));
  const wire::Table& of = parameters.tables()[static_cast<size_t>(table)];
  const size_t bytes = static_cast<size_t>(TableElements(of)) * sizeof(float);
  if (gradient.size() != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of '", of.name(), "' has ", gradient.size(),
                     " bytes; ", bytes, " are required"));
  }
  if (const std::string fault = FaultOf(options); !fault.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the gradient of '", of.name(), "' has ", fault));
  }
  SL_RETURN_IF_ERROR(CheckUndone(table));
  SL_RETURN_IF_ERROR(WaitFor(table));
  const bool on_device = step->round->on_device();
  if (table == 0 && !on_device &&
      HasBadGradient(parts.self.conditions, step->clock)) {
    gradient = WithNan(gradient);
  }
  if (const std::optional<float> scale =
          ScaleOf(parts.self.conditions, step->clock);
      scale.has_value() && !on_device) {
    gradient = Scaled(gradient, *scale);
  }
  report.time().Computed(loop.Now());
  SL_RETURN_IF_ERROR(
      step->round->Add(step->clock, TableId{table}, gradient, options));
  step->has_gradient[static_cast<size_t>(table)] = true;
  return absl::OkStatus();
}

absl::Status Session::Life::CheckUndone(int table) const {
  if (!step->has_gradient[static_cast<size_t>(table)]) return absl::OkStatus();
  const wire::Table& of = parameters.tables()[static_cast<size_t>(table)];
  return absl::InvalidArgumentError(
      absl::StrCat("'", of.name(), "' has a gradient in step ", step->clock,
                   " already, or was skipped"));
}

absl::Status Session::Life::SkipTable(int table) {
  if (!step.has_value())
    return absl::FailedPreconditionError("no step is open");
  SL_RETURN_IF_ERROR(CheckTable(table));
  SL_RETURN_IF_ERROR(CheckUndone(table));
  SL_RETURN_IF_ERROR(WaitFor(table));
  SL_RETURN_IF_ERROR(step->round->Skip(TableId{table}));
  step->has_gradient[static_cast<size_t>(table)] = true;
  return absl::OkStatus();
}

absl::Status Session::Life::FinishStep(std::optional<double> loss) {
  if (!step.has_value())
    return absl::FailedPreconditionError("no step is open");
  std::vector<std::string> missing;
  for (size_t table = 0; table < step->has_gradient.size(); ++table) {
    if (!step->has_gradient[table])
      missing.push_back(
          absl::StrCat("'", parameters.tables()[table].name(), "'"));
  }
  if (!missing.empty()) {
    constexpr size_t kNamedMax = 5;
    const size_t more = missing.size() - std::min(missing.size(), kNamedMax);
    missing.resize(missing.size() - more);
    return absl::FailedPreconditionError(
        absl::StrCat("step ", step->clock, " has no gradient of ",
                     absl::StrJoin(missing, ", "),
                     more > 0 ? absl::StrCat(" and ", more, " more") : ""));
  }
  const OpenStep done = *std::move(step);
  CloseStep();
  const absl::Time computed_at = loop.Now();
  report.time().Computed(computed_at);
  last_compute = computed_at - done.computing - done.waited;
  report.AddComputeSeconds(
      absl::ToDoubleSeconds(computed_at - done.begin - done.waited));
  return done.round->Finish(
      {.clock = done.clock, .examples = done.examples, .loss = loss});
}

absl::StatusOr<Session::Gathered> Session::Life::Gather(const GatherCall& call,
                                                        const Payload& payload,
                                                        absl::Time give_up_at) {
  const absl::Time asked = loop.Now();
  // A life that has just begun: there are no calls before it has joined.
  while (loop.view() == nullptr)
    SL_RETURN_IF_ERROR(loop.Sleep(absl::Milliseconds(10)));
  wire::Call message;
  message.mutable_gather()->set_place(call.place);
  message.mutable_gather()->set_number(call.number);
  const uint64_t id = loop.StartCall(std::move(message), payload);
  while (true) {
    const absl::StatusOr<MemberCore::CallResult> waited =
        loop.WaitCall(id, kGatherLook);
    if (waited.ok()) {
      const absl::Time got = loop.Now();
      report.time().Computed(asked);
      report.time().Waited(got);
      report.AddWaitSeconds(absl::ToDoubleSeconds(got - asked));
      const auto& ranks = waited->reply.gathered().rank();
      if (static_cast<size_t>(ranks.size()) != waited->values.size()) {
        return absl::InternalError(
            absl::StrCat("a collective has brought ", waited->values.size(),
                         " payloads of ", ranks.size(), " workers"));
      }
      return Gathered{.ranks = {ranks.begin(), ranks.end()},
                      .payloads = waited->values};
    }
    if (!absl::IsDeadlineExceeded(waited.status()) || !loop.ending().ok()) {
      loop.ForgetCall(id);
      return loop.ending().ok()
                 ? absl::InvalidArgumentError(waited.status().message())
                 : waited.status();
    }
    if (loop.Now() >= give_up_at) {
      const std::string obstacle = loop.ObstacleOf(id);
      loop.ForgetCall(id);
      return absl::DeadlineExceededError(absl::StrCat(
          "worker ", static_cast<int>(options.rank),
          obstacle.empty() ? " heard nothing of the others"
                           : absl::StrCat(" ", obstacle),
          " for ", options.config.limits().wait_timeout_ms(), " ms"));
    }
    // It stands still for others, not by its own fault.
    loop.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
      core.OnProgress(now);
    });
    if (const absl::Status done = ActAtGather(); !done.ok()) session.Fail(done);
  }
}

absl::Status Session::Life::ActAtGather() {
  while (true) {
    const ActionLine::AtGather next = loop.NextAtGather();
    if (!next.lost.ok()) {
      step.reset();
      by_group.Lose(next.lost);
    } else if (next.action != nullptr) {
      std::optional<Task> evaluation;
      SL_RETURN_IF_ERROR(std::visit(
          [&](const auto& what) { return Perform(what, &evaluation); },
          *next.action));
      if (evaluation.has_value()) evaluations.push_back(*std::move(evaluation));
    } else {
      return absl::OkStatus();
    }
  }
}

void Session::Life::CloseStep() {
  step.reset();
  loop.OnStepOver();
}

absl::StatusOr<std::vector<TableState>> Session::Life::OptimizerState() {
  if (Replica* const own = by_group.replica(); own != nullptr)
    return own->State();
  SL_ASSIGN_OR_RETURN(const WorkerCore::Parameters pulled,
                      Fetch(StateParts::kAll));
  return TableStatesOf(*pulled);
}

absl::Status Session::Life::FetchParameters() {
  if (by_group.replica() != nullptr) return absl::OkStatus();
  return Fetch(StateParts::kValues).status();
}

absl::StatusOr<WorkerCore::Parameters> Session::Life::Fetch(StateParts what) {
  const absl::Time asked = loop.Now();
  SL_ASSIGN_OR_RETURN(WorkerCore::Parameters pulled, loop.AskState(what));
  const absl::Time got = loop.Now();
  report.time().Computed(asked);
  report.time().Pulled(got);
  const absl::Duration waited_for_it = got - asked;
  report.AddWaitSeconds(absl::ToDoubleSeconds(waited_for_it));
  if (step.has_value()) {
    step->waited += waited_for_it;
  } else {
    LoadSnapshot(SnapshotOf(*pulled), &parameters);
  }
  return pulled;
}

absl::Status Session::Life::Perform(const WorkerCore::Compute& action,
                                    std::optional<Task>* task) {
  by_group.ForgetReplica();
  report.AddWaitSeconds(absl::ToDoubleSeconds(waited));
  ReachedClock(action.clock);
  const bool by_table = action.parameters == nullptr;
  if (!by_table) {
    report.time().Granted(action.parameters->LongestParked(),
                          action.acknowledged);
    LoadSnapshot(SnapshotOf(*action.parameters), &parameters);
  }
  SL_RETURN_IF_ERROR(BeginStep(action.clock, &over_servers,
                               /*keeps_model=*/false, action.examples, task));
  if (!by_table) return absl::OkStatus();
  step->has_parameters.assign(step->has_parameters.size(), false);
  step->begun_without = true;
  step->acknowledged = action.acknowledged;
  std::get<Step>(**task).by_table = true;
  return WaitFor(0);  // It has come.
}

// ---- By all-reduce

absl::Status Session::Life::Perform(const WorkerCore::Initialize&,
                                    std::optional<Task>*) {
  return by_group.Initialize(session.initial_state_);
}

absl::Status Session::Life::Perform(const WorkerCore::Reduce& action,
                                    std::optional<Task>* task) {
  ReachedClock(action.clock);
  report.time().EndIdle();
  if (action.again) return by_group.ReduceAgain();
  if (action.empty) return by_group.ReduceNothing(action.clock);
  by_group.Begin();
  return BeginStep(action.clock, &by_group, action.keeps_model, action.examples,
                   task);
}

// ---- Checkpoints

absl::Status Session::Life::Perform(const WorkerCore::KeepState& action,
                                    std::optional<Task>*) {
  own_parts.WriteState(action.cut, action.clock, *by_group.replica());
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::KeepProgram& action,
                                    std::optional<Task>*) {
  own_parts.WriteOwn(action, compressor.Residuals());
  return absl::OkStatus();
}

absl::Status Session::Life::BeginWithOwn(std::optional<Task>* task) {
  if (!parts.loop.core.member.join.keeps_state()) return absl::OkStatus();
  SL_ASSIGN_OR_RETURN(std::optional<std::string> program,
                      own_parts.Find(&compressor));
  if (program.has_value()) *task = Restore{.state = *std::move(program)};
  return absl::OkStatus();
}

// ---- Evaluation and the end

absl::Status Session::Life::Perform(const WorkerCore::Evaluate& action,
                                    std::optional<Task>* task) {
  *task = Evaluation{.clock = action.clock,
                     .since = loop.Now(),
                     .parameters = action.parameters == nullptr
                                       ? TakeSnapshot(parameters)
                                       : SnapshotOf(*action.parameters)};
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::Conclude& action,
                                    std::optional<Task>* task) {
  if (action.parameters != nullptr) {
    by_group.ForgetReplica();
    LoadSnapshot(SnapshotOf(*action.parameters), &parameters);
  }
  concluding = true;
  *task = Conclusion{};
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::Save&,
                                    std::optional<Task>*) {
  Save();
  return absl::OkStatus();
}

void Session::Life::Save() {
  concluding = false;
  const absl::Status written = session.Write(parameters, &result).status();
  if (!written.ok()) {
    loop.Tell(
        [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
          core.OnSaveFailed(written, now, effects);
        });
    return;
  }
  spdlog::info("final model: {}sha256 {}", final_scores, result.model_sha256());
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnConcluded(result, now, effects);
      });
}

}  // namespace slackline
