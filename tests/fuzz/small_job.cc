#include "tests/fuzz/small_job.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline::fuzz {
namespace {

constexpr int64_t kShardElements = 4;

wire::JoinRequest Join(wire::JoinRequest::Role role, const PeerId& peer) {
  wire::JoinRequest join;
  join.set_role(role);
  join.set_index(peer.index);
  join.set_token(peer.instance);
  join.set_job("job");
  join.set_config_hash("hash");
  join.set_host("127.0.0.1");
  join.set_host_id("here");
  return join;
}

}  // namespace

PeerId ServerPeer() { return {PeerId::Kind::kServer, 0, 100}; }
PeerId WorkerPeer(int rank) {
  return {PeerId::Kind::kWorker, rank, 200 + static_cast<uint64_t>(rank)};
}

wire::JoinRequest ServerJoin() {
  wire::JoinRequest join = Join(wire::JoinRequest::SERVER, ServerPeer());
  for (int t = 0; t < kThreads; ++t)
    join.add_thread()->add_endpoint(absl::StrCat("tcp://127.0.0.1:", 7000 + t));
  return join;
}

wire::JoinRequest WorkerJoin(int rank) {
  wire::JoinRequest join = Join(wire::JoinRequest::WORKER, WorkerPeer(rank));
  wire::Table& table = *join.add_table();
  table.set_name("weight");
  table.add_shape(kElements);
  table.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  join.set_steps_total(1000);
  join.set_steps_per_epoch(100);
  return join;
}

CoordinatorCore::Options JobOptions() {
  CoordinatorCore::Options options;
  options.job = "job";
  options.run = kRun;
  options.config_hash = "hash";
  options.servers = 1;
  options.workers = kWorkers;
  options.config.mutable_sync()->mutable_bsp();
  options.shard_elements = kShardElements;
  return options;
}

void JoinAll(CoordinatorCore* core, absl::Time now,
             CoordinatorCore::Effects* effects, bool elastic) {
  const auto join = [&](const PeerId& peer, const wire::JoinRequest& request) {
    Message message;
    *message.header.mutable_join_request() = request;
    core->OnMessage(peer, message, now, effects);
  };
  join(ServerPeer(), ServerJoin());
  for (int rank = 0; rank < kWorkers; ++rank) {
    wire::JoinRequest request = WorkerJoin(rank);
    if (elastic) {
      request.mutable_elastic()->set_examples(50);
      request.mutable_elastic()->set_batch_size(4);
      request.mutable_elastic()->set_total(100);
    }
    join(WorkerPeer(rank), request);
  }
}

std::shared_ptr<const View> RunningView() {
  CoordinatorCore core(JobOptions());
  CoordinatorCore::Effects effects;
  core.Start(absl::UnixEpoch());
  JoinAll(&core, absl::UnixEpoch(), &effects);
  core.OnTick(absl::UnixEpoch(), &effects);
  SL_CHECK(core.state() == wire::RUNNING, "the job does not run");
  const auto view = View::Create(core.view());
  SL_CHECK(view.ok(), view.status().ToString());
  return *view;
}

std::shared_ptr<const View> FollowedView() {
  wire::View proto = RunningView()->ToProto();
  wire::ServerMember& server = *proto.add_server();
  server = proto.server(0);
  server.set_index(1);
  server.set_incarnation(99);
  server.mutable_thread()->DeleteSubrange(1, kThreads - 1);
  const int32_t last = proto.owner_server_size() - 1;
  proto.set_owner_server(0, 0);
  proto.set_owner_thread(0, 0);
  proto.set_owner_server(last, 1);
  proto.set_owner_thread(last, 0);
  for (const int32_t shard : {0, last}) {
    wire::Follower& follower = *proto.add_follower();
    follower.set_shard(shard);
    follower.set_server(shard == 0 ? 1 : 0);
    follower.set_since(kFollowedSince);
    follower.set_in_sync(true);
  }
  const auto view = View::Create(std::move(proto));
  SL_CHECK(view.ok(), view.status().ToString());
  return *view;
}

}  // namespace slackline::fuzz
