// A job in the test's own process, over any transport: the parts of the
// programs as their main()s make them, one table, and SGD of rate 1.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/net/transport.h"
#include "common/version.h"
#include "gtest/gtest.h"
#include "server/control_loop.h"
#include "server/coordinator/coordinator_thread.h"
#include "server/shard/shard_thread.h"
#include "tests/support/must.h"
#include "tests/support/step_worker.h"

namespace slackline {

struct JobShape {
  int servers = 1;
  int threads = 1;  // Of a server.
  int shards = 1;
  int shard_elements = 1;
  absl::Duration lease = absl::Seconds(1);
  std::string coordinator;  // Its endpoint.
  int workers = 1;
  config::Sync sync = {};  // BSP if it has no mode.
  std::string config_hash = {};
  config::Optimizer optimizer = {};  // Of tables without one.
  // Of the servers.
  config::Limits::Transport transport = config::Limits::TCP;
};

// In job "job", on this host. The token is that of a server, by index; the
// worker's comes after them.
inline wire::JoinRequest JoinOf(wire::JoinRequest::Role role, int index,
                                int token) {
  wire::JoinRequest join;
  join.set_role(role);
  join.set_index(index);
  join.set_token(static_cast<uint64_t>(token));
  join.set_job("job");
  join.set_host("127.0.0.1");
  join.set_host_id("here");
  join.set_protocol(kProtocol);
  return join;
}

inline std::unique_ptr<CoordinatorThread> StartCoordinator(
    const JobShape& shape, Transport& transport) {
  CoordinatorThread::Options options;
  options.core = {.job = "job",
                  .config_hash = shape.config_hash,
                  .protocol = kProtocol,
                  .build = {},
                  .servers = shape.servers,
                  .workers = shape.workers,
                  .shard_elements = shape.shard_elements};
  config::ClusterConfig& config = options.core.config;
  *config.mutable_sync() = shape.sync;
  *config.mutable_optimizer() = shape.optimizer;
  config.mutable_limits()->set_lease_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(shape.lease)));
  options.endpoint = shape.coordinator;
  return Must(CoordinatorThread::Start(transport, options));
}

class ServerInProcess {
 public:
  // `transport` outlives it.
  ServerInProcess(const JobShape& shape, int index, Transport& transport) {
    ControlLoop::Options control;
    control.core.member.coordinators = {shape.coordinator};
    control.shard_threads = shape.threads;
    control.core.member.join =
        JoinOf(wire::JoinRequest::SERVER, index, index + 1);
    control.core.member.join.set_config_hash(shape.config_hash);
    for (int t = 0; t < shape.threads; ++t) {
      ShardThread::Options options;
      options.core = {.self = {.server = index, .thread = t}, .seed = 1};
      options.host = "127.0.0.1";
      options.transport = shape.transport;
      threads_.push_back(Must(ShardThread::Start(transport, options, {})));
      *control.core.member.join.add_thread() = threads_.back()->endpoints();
    }
    control.give_view = [this](const std::shared_ptr<const View>& view) {
      for (const auto& thread : threads_) thread->Follow(view);
    };
    loop_ = Must(ControlLoop::Create(transport, control));
    thread_ = std::thread([this] { (void)loop_->Run(); });
  }
  ServerInProcess(const ServerInProcess&) = delete;
  ServerInProcess& operator=(const ServerInProcess&) = delete;
  ~ServerInProcess() {
    loop_->Interrupt("the test is over");
    thread_.join();
  }

 private:
  std::vector<std::unique_ptr<ShardThread>> threads_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
};

// A worker pushes a gradient of ones in each step and looks at what it pulls:
// every step subtracts 1 from each parameter.
inline void ExpectTrains(const JobShape& shape, int steps,
                         Transport& to_coordinator,
                         Transport& to_shard_threads) {
  const int elements = shape.shards * shape.shard_elements;
  WorkerLoop::Options options;
  options.core.member.coordinators = {shape.coordinator};
  options.transport = config::Limits::TCP;
  wire::JoinRequest& join = options.core.member.join;
  join = JoinOf(wire::JoinRequest::WORKER, 0, shape.servers + 1);
  wire::Table& table = *join.add_table();
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  table.set_name("weight");
  table.add_shape(elements);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  table.mutable_initializer()->set_a(10);
  join.set_steps_total(1000);
  join.set_steps_per_epoch(1000);
  const auto worker =
      Must(bench::StepWorker::Start(to_coordinator, to_shard_threads, options));
  const std::vector<float> ones(static_cast<size_t>(elements), 1.0f);
  for (int step = 0; step < steps; ++step) {
    const WorkerCore::Parameters parameters = Must(worker->Pull());
    ASSERT_EQ(parameters->shards.size(), static_cast<size_t>(shape.shards));
    const std::vector<float> expected(static_cast<size_t>(shape.shard_elements),
                                      static_cast<float>(10 - step));
    for (const auto& shard : parameters->shards) {
      std::vector<float> values(expected.size());
      ASSERT_EQ(shard.values.size(), values.size() * sizeof(float));
      std::memcpy(values.data(), shard.values.data(), shard.values.size());
      ASSERT_EQ(values, expected);
    }
    const absl::Status pushed =
        worker->Push(Payload::Copy(ones.data(), ones.size() * sizeof(float)));
    ASSERT_TRUE(pushed.ok()) << pushed;
  }
}

}  // namespace slackline
