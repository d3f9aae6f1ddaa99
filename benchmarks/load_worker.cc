#include "benchmarks/load_worker.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/process/job_key.h"
#include "common/process/join_request.h"
#include "common/process/user_key_file.h"
#include "common/status.h"
#include "tools/cli/members/local_hosts.h"

namespace slackline::bench {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kWaitMax = absl::Minutes(2);

}  // namespace

std::vector<double> MillisecondsOf(const std::vector<Interval>& intervals) {
  std::vector<double> ms;
  for (const Interval& interval : intervals) ms.push_back(interval.ms());
  return ms;
}

bool StepLimit::MayBegin(int64_t done) {
  const MutexLock lock(mutex_);
  if (closed_ && done >= begun_) return false;
  begun_ = std::max(begun_, done + 1);
  return true;
}

void StepLimit::Close() {
  const MutexLock lock(mutex_);
  closed_ = true;
}

absl::StatusOr<std::unique_ptr<LoadWorker>> LoadWorker::Start(
    Transport& transport, const config::ClusterConfig& config, const Load& load,
    int rank, StepLimit& limit) {
  WorkerLoop::Options options;
  wire::JoinRequest& join = options.core.member.join;
  join = JoinRequestOf(wire::JoinRequest::WORKER, rank, "127.0.0.1", config);
  wire::Table& table = *join.add_table();
  *table.mutable_optimizer() = config.optimizer();
  table.set_name(kLoadTable);
  table.add_shape(load.elements);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  join.set_steps_total(kManySteps);
  join.set_steps_per_epoch(kManySteps);
  options.core.member.coordinators = CoordinatorEndpoints(config);
  SL_ASSIGN_OR_RETURN(std::unique_ptr<StepWorker> worker,
                      StepWorker::Start(transport, transport, options));
  return std::unique_ptr<LoadWorker>(
      new LoadWorker(std::move(worker), load, limit));
}

LoadWorker::LoadWorker(std::unique_ptr<StepWorker> worker, const Load& load,
                       StepLimit& limit)
    : pace_(load.pace),
      worker_(std::move(worker)),
      gradient_(Payload::Allocate(static_cast<size_t>(load.elements) *
                                  sizeof(float))),
      limit_(limit) {
  auto* const values = reinterpret_cast<float*>(gradient_.MutableData());
  std::fill(values, values + load.elements, 1.0f);
  thread_ = std::thread([this] { status_ = Work(); });
}

absl::Status LoadWorker::Stop() {
  limit_.Close();
  if (thread_.joinable()) thread_.join();
  return status_;
}

std::vector<Interval> LoadWorker::TakeSteps() {
  const MutexLock lock(mutex_);
  return std::exchange(steps_, {});
}

absl::Status LoadWorker::PushZeros() {
  Payload zeros = Payload::Allocate(gradient_.size());
  std::memset(zeros.MutableData(), 0, zeros.size());
  return worker_->Push(zeros);
}

absl::Status LoadWorker::Work() {
  SL_RETURN_IF_ERROR(worker_->Pull().status());
  while (limit_.MayBegin(pushes_)) {
    const absl::Time begin = absl::Now();
    SL_RETURN_IF_ERROR(worker_->Push(gradient_));
    ++pushes_;
    SL_RETURN_IF_ERROR(worker_->Pull().status());
    {
      const MutexLock lock(mutex_);
      steps_.push_back({.begin = begin, .end = absl::Now()});
    }
    absl::SleepFor(pace_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LoadCluster>> LoadCluster::Start(
    const Options& options) {
  auto cluster = std::unique_ptr<LoadCluster>(new LoadCluster);
  config::ClusterConfig config = options.config;
  SL_ASSIGN_OR_RETURN(PortReservation port,
                      PortReservation::AnyFree(config.coordinator().host()));
  config.mutable_coordinator()->set_port(port.port());
  const fs::path folder = options.folder;
  const std::string file = folder / "cluster.textproto";
  std::ofstream(file) << ToText(config);
  const std::string program =
      fs::read_symlink("/proc/self/exe").parent_path() / "slackline_server";
  for (size_t s = 0; s < ServerProcesses(config).size(); ++s) {
    std::vector<std::string> command = {program, "--cluster", file, "--index",
                                        absl::StrCat(s)};
    command.insert(command.end(), options.server_flags.begin(),
                   options.server_flags.end());
    SL_ASSIGN_OR_RETURN(
        ChildProcess server,
        ChildProcess::Start({.command = command,
                             .log_path = folder / absl::StrCat(s, ".log")}));
    cluster->servers_.push_back(std::move(server));
  }
  // As its servers, by the user's key.
  const auto held = [&config](Role role) {
    return KeysHere(config, role, {.own = UserKeyFileHere()});
  };
  SL_ASSIGN_OR_RETURN(const std::optional<KeySource> keys, held(Role::kWorker));
  SL_ASSIGN_OR_RETURN(const std::optional<KeySource> orders,
                      held(Role::kOperator));
  cluster->transports_.emplace(keys);
  const int workers = static_cast<int>(WorkerProcesses(config).size());
  for (int rank = 0; rank < workers; ++rank) {
    SL_ASSIGN_OR_RETURN(cluster->workers_.emplace_back(),
                        LoadWorker::Start(cluster->transports_->all(), config,
                                          options.load, rank, cluster->limit_));
  }
  SL_ASSIGN_OR_RETURN(cluster->coordinator_,
                      CoordinatorClient::Connect(CoordinatorEndpoints(config),
                                                 config.job(), orders));
  while (true) {
    SL_ASSIGN_OR_RETURN(const wire::StatusReply status,
                        cluster->coordinator_->GetStatus(kWaitMax));
    if (status.view().state() == wire::RUNNING) return cluster;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

std::vector<Interval> LoadCluster::TakeSteps() {
  std::vector<Interval> all;
  for (const auto& worker : workers_) {
    const std::vector<Interval> some = worker->TakeSteps();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void LoadCluster::KillServer(int index) {
  servers_[static_cast<size_t>(index)].Signal(SIGKILL);
}

absl::StatusOr<int64_t> LoadCluster::CountWrong() {
  int64_t pushes = 0;
  for (const auto& worker : workers_) SL_RETURN_IF_ERROR(worker->Stop());
  for (const auto& worker : workers_) pushes += worker->pushes();
  for (const auto& worker : workers_) SL_RETURN_IF_ERROR(worker->PushZeros());
  SL_ASSIGN_OR_RETURN(const WorkerCore::Parameters model,
                      workers_.front()->Pull());
  // Each push is divided by the number of workers: exact in float.
  const float expected =
      -static_cast<float>(pushes) / static_cast<float>(workers_.size());
  int64_t wrong = 0;
  for (const ShardValue& shard : model->shards) {
    for (size_t at = 0; at < shard.values.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, shard.values.data() + at, sizeof(value));
      wrong += value != expected;
    }
  }
  return wrong;
}

void LoadCluster::Stop() {
  if (coordinator_ != nullptr)
    (void)coordinator_->Stop("the benchmark is done", kWaitMax);
  coordinator_ = nullptr;
  workers_.clear();
  servers_.clear();
}

}  // namespace slackline::bench
