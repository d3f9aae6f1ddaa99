#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "benchmarks/push_pull.h"
#include "benchmarks/report.h"
#include "common/net/host_id.h"
#include "common/net/process/process_transport.h"
#include "common/status.h"
#include "common/view/initializer.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/shard/shard_thread.h"
#include "tests/support/step_worker.h"

namespace slackline::bench {
namespace {

constexpr char kJob[] = "bench-push-pull";

// Servers and workers of a round have one parent and one round at a time.
std::string CoordinatorEndpoint() {
  return absl::StrCat("ipc://@", kJob, "-", getppid());
}

// These keys are the benchmark's alone.
std::optional<KeySource> KeysOf(const PushPullSetup& setup, Role role) {
  if (!setup.keys) return std::nullopt;
  return KeySource{
      .file = "",  // They do not change.
      .job = kJob,
      .holder = role,
      .plan = {.first = CredentialsOf(Secret(Secret::Bytes{1}), role)}};
}

wire::Table TableOf(const PushPullSetup& setup) {
  wire::Table table;
  table.set_name("table");
  table.add_shape(setup.bytes / static_cast<int64_t>(sizeof(float)));
  table.mutable_initializer()->set_kind(wire::Initializer::UNIFORM);
  table.mutable_initializer()->set_a(-1);
  table.mutable_initializer()->set_b(1);
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(0.1);
  return table;
}

// Equal parts for the servers, and shards no larger than a message or 256 KiB.
int64_t ShardElements(const PushPullSetup& setup) {
  const int64_t bytes = std::min(
      {setup.bytes / setup.servers, setup.message_bytes, int64_t{256} << 10});
  return bytes / static_cast<int64_t>(sizeof(float));
}

wire::JoinRequest Join(wire::JoinRequest::Role role, int index) {
  wire::JoinRequest join;
  join.set_role(role);
  join.set_index(index);
  join.set_token(static_cast<uint64_t>(getpid()));
  join.set_job(kJob);
  join.set_host("127.0.0.1");
  join.set_host_id(HostId());
  join.set_pid(getpid());
  return join;
}

class SlacklineWorker : public PushPullWorker {
 public:
  static absl::StatusOr<std::unique_ptr<PushPullWorker>> Create(
      const PushPullSetup& setup, int worker) {
    auto created = std::make_unique<SlacklineWorker>(setup);
    WorkerLoop::Options options;
    options.core.member.coordinators = {CoordinatorEndpoint()};
    options.transport =
        setup.via == PushPullSetup::Via::kTcp   ? config::Limits::TCP
        : setup.via == PushPullSetup::Via::kIpc ? config::Limits::IPC
                                                : config::Limits::SHM;
    options.wait.spin_max = setup.spin_max;
    options.core.client.window_bytes = setup.window_bytes;
    options.core.client.message_bytes = std::min<size_t>(
        setup.message_bytes, ClientCore::Options().message_bytes);
    options.core.client.socket_message_bytes = setup.message_bytes;
    wire::JoinRequest& join = options.core.member.join;
    join = Join(wire::JoinRequest::WORKER, worker);
    *join.add_table() = TableOf(setup);
    join.set_steps_total(kManySteps);
    join.set_steps_per_epoch(kManySteps);
    SL_ASSIGN_OR_RETURN(created->worker_,
                        StepWorker::Start(created->transports_.all(),
                                          created->transports_.all(), options));
    SL_RETURN_IF_ERROR(created->worker_->Pull().status());
    return created;
  }

  explicit SlacklineWorker(const PushPullSetup& setup)
      : setup_(setup),
        expected_(setup.bytes),
        transports_(KeysOf(setup, Role::kWorker)) {
    gradient_ = setup.shared_gradients
                    ? transports_.all().memory()->Allocate(setup.bytes)
                    : Payload::Allocate(setup.bytes);
    // Zeros leave the parameters as they were, whoever pushes them.
    std::memset(gradient_.MutableData(), 0, gradient_.size());
    InitializeElements(
        TableOf(setup), setup.seed, 0,
        absl::MakeSpan(reinterpret_cast<float*>(expected_.data()),
                       setup.bytes / sizeof(float)));
  }

  absl::Status Step(bool verify) override {
    SL_RETURN_IF_ERROR(worker_->Push(gradient_));
    SL_ASSIGN_OR_RETURN(const WorkerCore::Parameters parameters,
                        worker_->Pull());
    if (!verify) return absl::OkStatus();
    for (size_t i = 0; i < parameters->shards.size(); ++i) {
      const ShardRange& range =
          parameters->view->shard(ShardId{static_cast<int32_t>(i)});
      const Payload& values = parameters->shards[i].values;
      if (values.size() != range.region.DenseBytes() ||
          std::memcmp(values.data(),
                      expected_.data() + range.region.begin() * sizeof(float),
                      range.region.DenseBytes()) != 0) {
        return absl::InternalError(
            absl::StrCat("slackline: wrong bytes pulled of shard ", i));
      }
    }
    return absl::OkStatus();
  }

  std::string Checksum() const override {
    return bench::Checksum(expected_.data(), expected_.size());
  }

 private:
  const PushPullSetup setup_;
  Payload gradient_;
  std::vector<std::byte> expected_;
  ProcessTransport transports_;
  std::unique_ptr<StepWorker> worker_;
};

class SlacklinePushPull : public PushPullSystem {
 public:
  std::string name() const override { return "slackline"; }

  absl::Status Serve(
      const PushPullSetup& setup, int server,
      const std::function<void(const std::string&)>& ready) override {
    ProcessTransport transports(KeysOf(setup, Role::kServer));
    Transport& transport = transports.all();
    std::unique_ptr<CoordinatorThread> coordinator;
    if (server == 0) {
      CoordinatorThread::Options options;
      options.core.job = kJob;
      options.core.servers = setup.servers;
      options.core.workers = setup.workers;
      options.core.shard_elements = ShardElements(setup);
      options.core.config.mutable_sync()->mutable_asp();
      options.endpoint = CoordinatorEndpoint();
      SL_ASSIGN_OR_RETURN(coordinator,
                          CoordinatorThread::Start(transport, options));
    }
    ShardThread::Options options;
    options.core = {.self = {.server = server, .thread = 0},
                    .seed = setup.seed};
    options.host = "127.0.0.1";
    options.wait.spin_max = setup.spin_max;
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<ShardThread> thread,
                        ShardThread::Start(transport, options, {}));
    ControlLoop::Options control;
    control.core.member.coordinators = {CoordinatorEndpoint()};
    control.give_view = [&](const std::shared_ptr<const View>& view) {
      thread->Follow(view);
    };
    control.core.member.join = Join(wire::JoinRequest::SERVER, server);
    *control.core.member.join.add_thread() = thread->endpoints();
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<ControlLoop> loop,
                        ControlLoop::Create(transport, control));
    ready("by the coordinator");
    return loop->Run();
  }

  absl::StatusOr<std::unique_ptr<PushPullWorker>> Connect(
      const PushPullSetup& setup, int worker,
      const std::vector<std::string>&) override {
    return SlacklineWorker::Create(setup, worker);
  }
};

}  // namespace

std::unique_ptr<PushPullSystem> MakeSlacklinePushPull() {
  return std::make_unique<SlacklinePushPull>();
}

}  // namespace slackline::bench
