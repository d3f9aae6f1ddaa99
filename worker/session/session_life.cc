#include "worker/session/session_life.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/optim/step_options.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "common/view/shard_map.h"
#include "worker/collective/host_group.h"
#include "worker/conditions/bad_gradient.h"
#include "worker/session/gpu_parts.h"

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
    step.reset();
    concluding = false;
  }
  while (true) {
    if (const std::optional<int32_t> cut = own_parts.Ask(); cut.has_value()) {
      bool last = false;
      loop.Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
        last = core.has_no_more_steps();
      });
      return Keep{.cut = *cut, .last = last};
    }
    const absl::Time asked = loop.Now();
    report.time().Computed(asked);
    if (!loop.ending().ok()) held = nullptr;  // As all that is not begun.
    SayAsked();
    std::unique_ptr<const WorkerCore::Action> action =
        held != nullptr ? std::move(held) : loop.Next();
    if (action == nullptr) return std::nullopt;
    if (!std::exchange(session.begun_, true)) {
      std::optional<Task> first;
      if (const absl::Status begun = BeginWithOwn(&first); !begun.ok())
        session.StopJob(begun);
      held = std::move(action);
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

void Session::Life::StepDone(Clock done, int64_t examples,
                             std::optional<double> loss) {
  clock = done + 1;
  session.initial_state_.clear();
  if (loss.has_value()) report.AddLoss(*loss);
  report.StepDone(clock, examples);
}

// ---- Steps

absl::Status Session::Life::BeginStep(
    Clock of, bool by_all_reduce, const std::optional<ExampleRange>& examples,
    std::optional<Task>* task) {
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
      .by_all_reduce = by_all_reduce,
      .on_device = by_all_reduce && parameters.gpu().has_value(),
      .begin = begin,
      .computing = loop.Now(),
      .has_parameters = std::vector<bool>(parameters.tables().size(), true),
      .has_gradient = std::vector<bool>(parameters.tables().size()),
      .waited = absl::ZeroDuration(),
      .examples = examples.has_value() ? examples->size() : options.batch_size};
  *task = Step{.clock = of,
               .by_all_reduce = by_all_reduce,
               .on_device = step->on_device,
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
  SL_ASSIGN_OR_RETURN(const ClientCore::TableValues values,
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
  for (const ClientCore::TableValues::Piece& piece : values.pieces) {
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
  if (table == 0 && !step->on_device &&
      HasBadGradient(parts.self.conditions, step->clock)) {
    gradient = WithNan(gradient);
  }
  if (const std::optional<float> scale =
          ScaleOf(parts.self.conditions, step->clock);
      scale.has_value() && !step->on_device) {
    gradient = Scaled(gradient, *scale);
  }
  report.time().Computed(loop.Now());
  SL_RETURN_IF_ERROR(
      step->by_all_reduce
          ? replica->Add(*group, TableId{table}, gradient, options)
          : loop.Push(
                TableId{table},
                compressor.Compress(TableId{table}, step->clock, gradient),
                options));
  const absl::Time handed_over = loop.Now();
  if (step->by_all_reduce) {
    report.time().Reduced(handed_over);
  } else {
    report.time().Pushed(handed_over);
  }
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
  SL_RETURN_IF_ERROR(step->by_all_reduce ? replica->Skip(*group, TableId{table})
                                         : loop.SkipTable(TableId{table}));
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
  step.reset();
  const absl::Time computed_at = loop.Now();
  report.time().Computed(computed_at);
  last_compute = computed_at - done.computing - done.waited;
  report.AddComputeSeconds(
      absl::ToDoubleSeconds(computed_at - done.begin - done.waited));
  if (done.by_all_reduce)
    return FinishReducing(done.clock, done.examples, loss);
  StepDone(done.clock, done.examples, loss);
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnComputed(loss.value_or(0), now, effects);
      });
  return absl::OkStatus();
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
    if (const absl::Status done = FollowGroup(); !done.ok()) session.Fail(done);
  }
}

// The others may wait for this worker in a new group before they come to where
// it waits for them. A step that is open in the old one is lost: the program
// goes on with it for nothing, and Next() hands it out again.
absl::Status Session::Life::FollowGroup() {
  while (loop.ending().ok()) {
    const bool in_group =
        step.has_value()
            ? step->by_all_reduce
            : held != nullptr &&
                  std::holds_alternative<WorkerCore::Reduce>(*held);
    absl::Status lost;
    loop.Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
      lost = core.WhyStepIsLost();
    });
    if (in_group && !lost.ok()) {
      step.reset();
      held = nullptr;
      GroupLost(lost);
    }
    if (step.has_value() || held != nullptr) return absl::OkStatus();
    std::unique_ptr<const WorkerCore::Action> action = loop.TryNext();
    if (action == nullptr) return absl::OkStatus();
    if (WorkerCore::NeedsProgram(*action)) {
      held = std::move(action);
      continue;
    }
    std::optional<Task> none;
    SL_RETURN_IF_ERROR(std::visit(
        [&](const auto& what) { return Perform(what, &none); }, *action));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TableState>> Session::Life::OptimizerState() {
  if (replica != nullptr) return replica->State();
  const absl::Time asked = loop.Now();
  SL_ASSIGN_OR_RETURN(const WorkerCore::Parameters pulled, loop.AskState());
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
  return TableStatesOf(*pulled);
}

absl::Status Session::Life::Perform(const WorkerCore::Compute& action,
                                    std::optional<Task>* task) {
  replica.reset();
  report.AddWaitSeconds(absl::ToDoubleSeconds(waited));
  ReachedClock(action.clock);
  const bool by_table = action.parameters == nullptr;
  if (!by_table) {
    report.time().Granted(action.parameters->LongestParked(),
                          action.acknowledged);
    LoadSnapshot(SnapshotOf(*action.parameters), &parameters);
  }
  SL_RETURN_IF_ERROR(
      BeginStep(action.clock, /*by_all_reduce=*/false, action.examples, task));
  if (!by_table) return absl::OkStatus();
  step->has_parameters.assign(step->has_parameters.size(), false);
  step->begun_without = true;
  step->acknowledged = action.acknowledged;
  std::get<Step>(**task).by_table = true;
  return WaitFor(0);  // It has come.
}

// ---- By all-reduce

absl::Status Session::Life::MakeReplica() {
  const std::optional<ParameterMemory::Gpu> gpu = parameters.gpu();
  // A job that begins with the values of a worker needs it in any mode.
  const char* const instead =
      BeginsWithWorker(loop.view()->proto()) ? "" : ", or use bsp, ssp or asp";
  for (const WorkerProcess& worker : WorkerProcesses(options.config)) {
    if (options.host_parameters || (worker.gpu >= 0) == gpu.has_value())
      continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", static_cast<int>(options.rank), " and worker ", worker.rank,
        " cannot all-reduce, because one trains on a GPU and the other does "
        "not; give all workers the same device",
        instead));
  }
  std::unique_ptr<FloatMemory> memory;
  if (gpu.has_value() && SlowestLink(options.config).has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL knows no links as in worker { conditions { link } }; leave them "
        "out",
        instead));
  }
  if (!gpu.has_value()) {
    memory = std::make_unique<HostMemory>();
  } else {
    SL_ASSIGN_OR_RETURN(memory, CreateGpuMemory(*gpu, GroupWaitMax()));
  }
  const int64_t bucket_kib = options.config.sync().collective().bucket_kib();
  SL_ASSIGN_OR_RETURN(
      replica, Replica::Create(&parameters, parts.schedule, bucket_kib * 1024,
                               std::move(memory), loop.view()));
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::Initialize&,
                                    std::optional<Task>*) {
  SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(
      replica->Initialize(static_cast<uint64_t>(options.config.train().seed()),
                          session.initial_state_));
  loop.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnInitialized(now, effects);
  });
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::Reduce& action,
                                    std::optional<Task>* task) {
  ReachedClock(action.clock);
  report.time().EndIdle();
  if (action.again) {
    SL_RETURN_IF_ERROR(replica->AddAgain(*group));
    return FinishReducing(action.clock, reducing_examples, reducing_loss);
  }
  replica->StartStep();
  if (!action.empty) {
    return BeginStep(action.clock, /*by_all_reduce=*/true, action.examples,
                     task);
  }
  SL_RETURN_IF_ERROR(replica->AddNothing(*group));
  return FinishReducing(action.clock, /*examples=*/0, std::nullopt);
}

absl::Status Session::Life::FinishReducing(Clock of, int64_t examples,
                                           std::optional<double> loss) {
  reducing_loss = loss;
  reducing_examples = examples;
  loop.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnReducing(now);
  });
  bool group_failed = false;
  const absl::StatusOr<Replica::StepResult> summed =
      options.elastic.has_value()
          ? replica->FinishStepOfSome(*group, of, examples > 0, &group_failed)
          : replica->FinishStep(*group, of, &group_failed);
  if (!summed.ok() && !group_failed) return summed.status();
  if (!summed.ok()) {
    GroupLost(summed.status());
    return absl::OkStatus();
  }
  report.AddWaitSeconds(summed->wait_seconds);
  report.time().Computed(loop.Now());
  report.time().WasReducing(absl::Seconds(summed->wait_seconds));
  const WorkerCore::Reduced reduced{.loss = loss.value_or(0),
                                    .nonfinite = summed->nonfinite,
                                    .culprits = summed->culprits};
  if (absl::c_linear_search(summed->culprits, group->rank()))
    report.AddNonfinite();
  StepDone(of, examples, loss);
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnReduced(reduced, now, effects);
      });
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::TakeState& action,
                                    std::optional<Task>*) {
  if (replica == nullptr) SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(replica->Load(*action.state));
  WorkerCore::Moved moved{.bytes = replica->bytes()};
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica->Hash(*action.state->view));
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateTaken(moved, now, effects);
      });
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::ReadState& action,
                                    std::optional<Task>*) {
  WorkerCore::Moved moved;
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica->Hash(*action.view));
  std::vector<ClientCore::InstalledShard> shards;
  for (const ShardId shard : action.shards) {
    SL_ASSIGN_OR_RETURN(ClientCore::ShardValue state,
                        replica->Give(*action.view, shard));
    moved.bytes +=
        static_cast<int64_t>(action.view->shard(shard).region.DenseBytes() *
                             (1 + state.slots.size()));
    shards.push_back({.shard = shard, .state = std::move(state)});
  }
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateRead(std::move(shards), moved, now, effects);
      });
  return absl::OkStatus();
}

// ---- Checkpoints

absl::Status Session::Life::Perform(const WorkerCore::KeepState& action,
                                    std::optional<Task>*) {
  own_parts.WriteState(action.cut, action.clock, *replica);
  return absl::OkStatus();
}

absl::Status Session::Life::Perform(const WorkerCore::KeepProgram& action,
                                    std::optional<Task>*) {
  own_parts.WriteOwn(action.cut, compressor.Residuals());
  return absl::OkStatus();
}

absl::Status Session::Life::BeginWithOwn(std::optional<Task>* task) {
  if (!parts.loop.core.member.join.keeps_state()) return absl::OkStatus();
  SL_ASSIGN_OR_RETURN(std::optional<std::string> program,
                      own_parts.Find(&compressor));
  if (program.has_value()) *task = Restore{.state = *std::move(program)};
  return absl::OkStatus();
}

// ---- The group

absl::Status Session::Life::Perform(const WorkerCore::Connect& action,
                                    std::optional<Task>*) {
  const absl::Time start = loop.Now();
  DropGroup(absl::CancelledError("the group of workers has changed"));
  store.SetGroup(action.group);
  const auto ring = [this] {
    return options.ring ? options.ring() : std::nullopt;
  };
  const std::optional<Secret> key = ring();
  GroupOptions group_options = {
      .rank = Rank{action.self},
      .world_size = static_cast<int32_t>(action.ranks.size()),
      .host = parts.self.host,
      .listen = parts.self.listen,
      .port = parts.self.port,
      .group = absl::StrCat("all-reduce/", action.group),
      .connect_timeout = GroupWaitMax(),
      .timeout = GroupWaitMax(),
      .link = SlowestLink(options.config),
      .key = key,
      .keep_trying =
          [&] {
            SL_RETURN_IF_ERROR(loop.WhyGroupIsOver(action.group));
            if (key.has_value() && ring()->bytes() != key->bytes()) {
              return absl::CancelledError(
                  "the keys of the job were exchanged meanwhile");
            }
            return absl::OkStatus();
          },
      .store = &store,
      .track = session.timeline_->TrackOf(timeline_names::kRanks),
      .sums_track = session.timeline_->TrackOf(timeline_names::kSums),
      .time = options.time,
      .sums = nullptr};
  if (parts.lanes.MayGoByServers() && action.ranks.size() > 1) {
    group_options.sums = [&] {
      return MakeServerSums(SumsOptions(action.group));
    };
  }
  const std::optional<ParameterMemory::Gpu> gpu = parameters.gpu();
  absl::StatusOr<ConnectedGroup> connected =
      gpu.has_value() ? ConnectGpuGroup(*gpu, group_options)
                      : ConnectHostGroup(group_options,
                                         options.config.limits().transport());
  if (!connected.ok()) {
    GroupLost(connected.status());
    return absl::OkStatus();
  }
  group = std::move(connected->collective);
  // Members that die, or come, wake us through the coordinator as well.
  loop.SetAbort(action.group,
                [this](const absl::Status& why) { group->Abort(why); });
  spdlog::info("connected to {} other workers over {} in {:.1f} ms{}",
               action.ranks.size() - 1, connected->over,
               absl::ToDoubleMilliseconds(loop.Now() - start),
               connected->why.empty() ? "" : "; " + connected->why);
  if (group->has_servers()) {
    const absl::StatusOr<std::vector<Lane>> lanes = parts.lanes.Choose(*group);
    if (!lanes.ok()) {
      GroupLost(lanes.status());
      return absl::OkStatus();
    }
    SL_RETURN_IF_ERROR(replica->SetLanes(*lanes));
  }
  loop.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
    core.OnConnected(now, effects);
  });
  return absl::OkStatus();
}

ServerSumsOptions Session::Life::SumsOptions(uint64_t group_of_sums) const {
  const std::shared_ptr<const View> view = loop.view();
  const wire::WorkerMember* const self = view->FindWorker(options.rank);
  ServerSumsOptions sums = {
      .transport = &session.to_shard_threads_,
      .via = options.config.limits().transport(),
      .worker = static_cast<int32_t>(options.rank),
      .incarnation = self == nullptr ? 0 : self->incarnation(),
      .run = view->proto().run(),
      .group = group_of_sums};
  for (const wire::ServerMember& server : view->servers())
    sums.servers.push_back(server);
  return sums;
}

absl::Status Session::Life::Perform(const WorkerCore::CatchUp& action,
                                    std::optional<Task>*) {
  bool group_failed = false;
  const absl::StatusOr<Replica::CaughtUp> reached =
      replica->CatchUp(*group, action.standing, &group_failed);
  if (!reached.ok() && !group_failed) return reached.status();
  if (!reached.ok()) {
    GroupLost(reached.status());
    return absl::OkStatus();
  }
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnCaughtUp(reached->clock, reached->took_state, now, effects);
      });
  return absl::OkStatus();
}

// The others may take their time to answer; that goes on beside what is next.
absl::Status Session::Life::Perform(const WorkerCore::LeaveGroup&,
                                    std::optional<Task>*) {
  if (group == nullptr) return absl::OkStatus();
  loop.SetAbort(0, nullptr);
  if (retired.joinable()) retired.join();
  if (parameters.gpu().has_value()) {  // That group is this thread's.
    group.reset();
  } else {
    retired = std::thread([old = std::move(group)] {});
  }
  return absl::OkStatus();
}

void Session::Life::GroupLost(const absl::Status& why) {
  DropGroup(why);
  loop.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnGroupLost(why, now, effects);
      });
}

// With an error the others notice that this worker goes.
void Session::Life::DropGroup(const absl::Status& why) {
  if (group == nullptr) return;
  loop.SetAbort(0, nullptr);
  if (!why.ok()) group->Abort(why);
  group.reset();
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
    replica.reset();
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
