#include "worker/session/group_round.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/timeline/event_names.h"
#include "common/view/initializer.h"
#include "common/view/shard_map.h"
#include "worker/collective/host_group.h"
#include "worker/session/gpu_parts.h"

namespace slackline {

GroupRound::GroupRound(const Options& options, ParameterMemory* parameters,
                       WorkerLoop* loop, RunReport* report,
                       std::function<void(const End&)> counts)
    : options_(options),
      config_(options.session.config),
      parameters_(*parameters),
      loop_(*loop),
      report_(*report),
      counts_(std::move(counts)),
      store_(loop) {}

GroupRound::~GroupRound() {
  Drop(absl::CancelledError("the worker has ended"));
  if (retired_.joinable()) retired_.join();
}

// ---- A step -----------------------------------------------------------------

absl::Status GroupRound::Add(Clock, TableId table, const Payload& gradient,
                             const StepOptions& options) {
  SL_RETURN_IF_ERROR(replica_->Add(*group_, table, gradient, options));
  report_.time().Reduced(loop_.Now());
  return absl::OkStatus();
}

absl::Status GroupRound::Skip(TableId table) {
  return replica_->Skip(*group_, table);
}

absl::Status GroupRound::ReduceAgain() {
  SL_RETURN_IF_ERROR(replica_->AddAgain(*group_));
  return Finish(reducing_);
}

absl::Status GroupRound::ReduceNothing(Clock clock) {
  replica_->StartStep();
  SL_RETURN_IF_ERROR(replica_->AddNothing(*group_));
  return Finish({.clock = clock, .examples = 0});
}

absl::Status GroupRound::Finish(const End& step) {
  reducing_ = step;
  loop_.Tell([](WorkerCore& core, absl::Time now, WorkerCore::Effects*) {
    core.OnReducing(now);
  });
  bool group_failed = false;
  const absl::StatusOr<Replica::StepResult> summed =
      options_.session.elastic.has_value()
          ? replica_->FinishStepOfSome(*group_, step.clock, step.examples > 0,
                                       &group_failed)
          : replica_->FinishStep(*group_, step.clock, &group_failed);
  if (!summed.ok() && !group_failed) return summed.status();
  if (!summed.ok()) {
    Lose(summed.status());
    return absl::OkStatus();
  }
  report_.AddWaitSeconds(summed->wait_seconds);
  report_.time().Computed(loop_.Now());
  report_.time().WasReducing(absl::Seconds(summed->wait_seconds));
  const WorkerCore::Reduced reduced{.loss = step.loss.value_or(0),
                                    .nonfinite = summed->nonfinite,
                                    .culprits = summed->culprits};
  if (absl::c_linear_search(summed->culprits, group_->rank()))
    report_.AddNonfinite();
  counts_(step);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnReduced(reduced, now, effects);
      });
  return absl::OkStatus();
}

// ---- The replica ------------------------------------------------------------

absl::Status GroupRound::MakeReplica() {
  const std::optional<ParameterMemory::Gpu> gpu = parameters_.gpu();
  // A job that begins with the values of a worker needs it in any mode.
  const char* const instead =
      BeginsWithWorker(loop_.view()->proto()) ? "" : ", or use bsp, ssp or asp";
  for (const WorkerProcess& worker : WorkerProcesses(config_)) {
    if (options_.session.host_parameters ||
        (worker.gpu >= 0) == gpu.has_value())
      continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", static_cast<int>(options_.session.rank), " and worker ",
        worker.rank,
        " cannot all-reduce, because one trains on a GPU and the other does "
        "not; give all workers the same device",
        instead));
  }
  std::unique_ptr<FloatMemory> memory;
  if (gpu.has_value() && SlowestLink(config_).has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "NCCL knows no links as in worker { conditions { link } }; leave them "
        "out",
        instead));
  }
  if (!gpu.has_value()) {
    memory = std::make_unique<HostMemory>();
  } else {
    SL_ASSIGN_OR_RETURN(memory, CreateGpuMemory(*gpu, WaitMax()));
  }
  const int64_t bucket_kib = config_.sync().collective().bucket_kib();
  SL_ASSIGN_OR_RETURN(
      replica_,
      Replica::Create(&parameters_, options_.schedule, bucket_kib * 1024,
                      std::move(memory), loop_.view()));
  return absl::OkStatus();
}

absl::Status GroupRound::Initialize(absl::Span<const TableState> initial) {
  SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(replica_->Initialize(
      static_cast<uint64_t>(config_.train().seed()), initial));
  loop_.Tell(
      [](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnInitialized(now, effects);
      });
  return absl::OkStatus();
}

absl::Status GroupRound::Perform(const WorkerCore::TakeState& action) {
  if (replica_ == nullptr) SL_RETURN_IF_ERROR(MakeReplica());
  SL_RETURN_IF_ERROR(replica_->CopyIn(*action.state));
  WorkerCore::Moved moved{.bytes = replica_->bytes()};
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica_->Hash(*action.state->view));
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateTaken(moved, now, effects);
      });
  return absl::OkStatus();
}

absl::Status GroupRound::Perform(const WorkerCore::ReadState& action) {
  WorkerCore::Moved moved;
  SL_ASSIGN_OR_RETURN(moved.model_hash, replica_->Hash(*action.view));
  std::vector<ClientCore::InstalledShard> shards;
  for (const ShardId shard : action.shards) {
    SL_ASSIGN_OR_RETURN(ShardValue state,
                        replica_->CopyOut(*action.view, shard));
    moved.bytes +=
        static_cast<int64_t>(action.view->shard(shard).region.DenseBytes() *
                             (1 + state.slots.size()));
    shards.push_back({.shard = shard, .state = std::move(state)});
  }
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnStateRead(std::move(shards), moved, now, effects);
      });
  return absl::OkStatus();
}

// ---- The group --------------------------------------------------------------

absl::Status GroupRound::Perform(const WorkerCore::Connect& action) {
  const absl::Time start = loop_.Now();
  Drop(absl::CancelledError("the group of workers has changed"));
  store_.SetGroup(action.group);
  const auto ring = [this] {
    return options_.session.ring ? options_.session.ring() : std::nullopt;
  };
  const std::optional<Secret> key = ring();
  GroupOptions group_options = {
      .rank = Rank{action.self},
      .world_size = static_cast<int32_t>(action.ranks.size()),
      .host = options_.self.host,
      .listen = options_.self.listen,
      .port = options_.self.port,
      .group = absl::StrCat("all-reduce/", action.group),
      .connect_timeout = WaitMax(),
      .timeout = WaitMax(),
      .link = SlowestLink(config_),
      .key = key,
      .keep_trying =
          [&] {
            SL_RETURN_IF_ERROR(loop_.WhyGroupIsOver(action.group));
            if (key.has_value() && ring()->bytes() != key->bytes()) {
              return absl::CancelledError(
                  "the keys of the job were exchanged meanwhile");
            }
            return absl::OkStatus();
          },
      .store = &store_,
      .track = options_.timeline.TrackOf(timeline_names::kRanks),
      .sums_track = options_.timeline.TrackOf(timeline_names::kSums),
      .time = options_.session.time,
      .sums = nullptr};
  if (options_.lanes.MayGoByServers() && action.ranks.size() > 1) {
    group_options.sums = [&] {
      return MakeServerSums(SumsOptions(action.group));
    };
  }
  const std::optional<ParameterMemory::Gpu> gpu = parameters_.gpu();
  absl::StatusOr<ConnectedGroup> connected =
      gpu.has_value()
          ? ConnectGpuGroup(*gpu, group_options)
          : ConnectHostGroup(group_options, config_.limits().transport());
  if (!connected.ok()) {
    Lose(connected.status());
    return absl::OkStatus();
  }
  group_ = std::move(connected->collective);
  // Members that die, or come, wake us through the coordinator as well.
  loop_.SetAbort(action.group,
                 [this](const absl::Status& why) { group_->Abort(why); });
  spdlog::info("connected to {} other workers over {} in {:.1f} ms{}",
               action.ranks.size() - 1, connected->over,
               absl::ToDoubleMilliseconds(loop_.Now() - start),
               connected->why.empty() ? "" : "; " + connected->why);
  if (group_->has_servers()) {
    const absl::StatusOr<std::vector<Lane>> lanes =
        options_.lanes.Choose(*group_);
    if (!lanes.ok()) {
      Lose(lanes.status());
      return absl::OkStatus();
    }
    SL_RETURN_IF_ERROR(replica_->SetLanes(*lanes));
  }
  loop_.Tell(
      [](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnConnected(now, effects);
      });
  return absl::OkStatus();
}

ServerSumsOptions GroupRound::SumsOptions(uint64_t group_of_sums) const {
  const std::shared_ptr<const View> view = loop_.view();
  const wire::WorkerMember* const self =
      view->FindWorker(options_.session.rank);
  ServerSumsOptions sums = {
      .transport = &options_.to_shard_threads,
      .via = config_.limits().transport(),
      .worker = static_cast<int32_t>(options_.session.rank),
      .incarnation = self == nullptr ? 0 : self->incarnation(),
      .run = view->proto().run(),
      .group = group_of_sums};
  for (const wire::ServerMember& server : view->servers())
    sums.servers.push_back(server);
  return sums;
}

absl::Status GroupRound::Perform(const WorkerCore::CatchUp& action) {
  bool group_failed = false;
  const absl::StatusOr<Replica::CaughtUp> reached =
      replica_->CatchUp(*group_, action.standing, &group_failed);
  if (!reached.ok() && !group_failed) return reached.status();
  if (!reached.ok()) {
    Lose(reached.status());
    return absl::OkStatus();
  }
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnCaughtUp(reached->clock, reached->took_state, now, effects);
      });
  return absl::OkStatus();
}

// The others may take their time to answer; that goes on beside what is next.
absl::Status GroupRound::Perform(const WorkerCore::LeaveGroup&) {
  if (group_ == nullptr) return absl::OkStatus();
  loop_.SetAbort(0, nullptr);
  if (retired_.joinable()) retired_.join();
  if (parameters_.gpu().has_value()) {  // That group is this thread's.
    group_.reset();
  } else {
    retired_ = std::thread([old = std::move(group_)] {});
  }
  return absl::OkStatus();
}

void GroupRound::Lose(const absl::Status& why) {
  Drop(why);
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnGroupLost(why, now, effects);
      });
}

void GroupRound::Drop(const absl::Status& why) {
  if (group_ == nullptr) return;
  loop_.SetAbort(0, nullptr);
  if (!why.ok()) group_->Abort(why);
  group_.reset();
}

}  // namespace slackline
