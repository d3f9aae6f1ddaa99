// Goal: no message ends a job, or its coordinator, but one that may. Method:
// the coordinator's thread with a job that runs, and an attacker with a socket
// of its own, who knows the job's name and config; after each attack the
// members are asked for, and the coordinator answers.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator_thread.h"

namespace slackline::hostile_member_test {

constexpr char kEndpoint[] = "inproc://coordinator";
constexpr absl::Duration kWaitMax = absl::Seconds(60);

// One process, as the coordinator sees it.
class Peer {
 public:
  Peer(Transport& transport, const PeerId& self) {
    absl::StatusOr<std::unique_ptr<Channel>> channel =
        transport.Connect(self, kEndpoint, {});
    EXPECT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
    poller_.Add(*channel_);
  }
  ~Peer() { poller_.Remove(*channel_); }

  // The first message that is wanted, of those that come after this was sent.
  Message Ask(const Message& message,
              const std::function<bool(const Message&)>& wanted) {
    EXPECT_TRUE(channel_->Send(message).ok());
    for (const absl::Time end = absl::Now() + kWaitMax; absl::Now() < end;) {
      absl::StatusOr<std::optional<Message>> reply = channel_->Receive();
      EXPECT_TRUE(reply.ok()) << reply.status();
      if (!reply.ok()) break;
      if (!reply->has_value()) {
        EXPECT_TRUE(poller_.Wait(end - absl::Now()).ok());
      } else if (wanted(**reply)) {
        return **reply;
      }
    }
    ADD_FAILURE() << "no answer";
    return Message();
  }
  wire::JoinReply Join(const wire::JoinRequest& join) {
    Message message;
    *message.header.mutable_join_request() = join;
    return Ask(message,
               [](const Message& m) { return m.header.has_join_reply(); })
        .header.join_reply();
  }
  wire::HeartbeatReply Beat(const wire::Heartbeat& heartbeat) {
    Message message;
    *message.header.mutable_heartbeat() = heartbeat;
    return Ask(message,
               [](const Message& m) { return m.header.has_heartbeat_reply(); })
        .header.heartbeat_reply();
  }
  wire::CallReply Call(const wire::Call& call) {
    Message message;
    *message.header.mutable_call() = call;
    return Ask(message,
               [&](const Message& m) {
                 return m.header.call_reply().call_id() == call.call_id();
               })
        .header.call_reply();
  }

 private:
  std::unique_ptr<Channel> channel_;
  Poller poller_;
};

wire::JoinRequest JoinOf(wire::JoinRequest::Role role, int index,
                         uint64_t token) {
  wire::JoinRequest join;
  join.set_role(role);
  join.set_index(index);
  join.set_token(token);
  join.set_job("job");
  join.set_config_hash("hash");
  if (role == wire::JoinRequest::WORKER) {
    wire::Table& table = *join.add_table();
    table.set_name("weight");
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
    table.add_shape(10);
    join.set_steps_total(7);
    join.set_steps_per_epoch(7);
  } else {
    join.add_thread()->add_endpoint("tcp://somewhere:1");
  }
  return join;
}

// One server and one worker, whose job runs.
class HostileMemberTest : public ::testing::Test {
 protected:
  HostileMemberTest() {
    CoordinatorThread::Options options;
    options.core.job = "job";
    options.core.config_hash = "hash";
    options.core.config.mutable_limits()->set_lease_ms(600000);
    options.endpoint = kEndpoint;
    auto thread = CoordinatorThread::Start(transport_, options);
    EXPECT_TRUE(thread.ok()) << thread.status();
    thread_ = *std::move(thread);
    const auto peer = [&](PeerId::Kind kind, uint64_t instance) {
      return std::make_unique<Peer>(
          transport_, PeerId{.kind = kind, .index = 0, .instance = instance});
    };
    server_ = peer(PeerId::Kind::kServer, 1);
    worker_ = peer(PeerId::Kind::kWorker, 2);
    attacker_ = peer(PeerId::Kind::kServer, 3);
    server_life_ =
        server_->Join(JoinOf(wire::JoinRequest::SERVER, 0, 1)).incarnation();
    worker_life_ =
        worker_->Join(JoinOf(wire::JoinRequest::WORKER, 0, 2)).incarnation();
  }
  // Members go first, so that the coordinator need not wait for them.
  ~HostileMemberTest() override {
    wire::Call stop;
    stop.set_call_id(1000);
    stop.mutable_stop()->set_reason("the test is over");
    attacker_->Call(stop);
    for (const auto& [peer, life] : {std::pair{server_.get(), server_life_},
                                     {worker_.get(), worker_life_}}) {
      Message last;
      last.header.set_view_number(std::numeric_limits<uint64_t>::max());
      last.header.mutable_heartbeat()->set_incarnation(life);
      peer->Ask(last, [](const Message& m) {
        return m.header.has_heartbeat_reply();
      });
    }
  }

  // The coordinator lives, and the job runs with these two members alone.
  void ExpectUnharmed() {
    wire::Call call;
    call.set_call_id(++calls_);
    call.mutable_status();
    const wire::StatusReply status = attacker_->Call(call).status();
    EXPECT_EQ(status.view().state(), wire::RUNNING)
        << status.view().end().reason();
    ASSERT_EQ(status.view().server_size(), 1);
    ASSERT_EQ(status.view().worker_size(), 1);
    EXPECT_EQ(status.view().server(0).incarnation(), server_life_);
    EXPECT_EQ(status.view().worker(0).incarnation(), worker_life_);
  }

  ZmqTransport transport_;
  std::unique_ptr<CoordinatorThread> thread_;
  std::unique_ptr<Peer> server_, worker_, attacker_;
  Incarnation server_life_ = 0, worker_life_ = 0;
  uint64_t calls_ = 0;
};

TEST_F(HostileMemberTest, AServerWithoutAnAddressIsShownToNobody) {
  wire::JoinRequest join = JoinOf(wire::JoinRequest::SERVER, 1, 3);
  join.mutable_thread(0)->set_endpoint(0, "garbage");
  EXPECT_EQ(attacker_->Join(join).code(), wire::REJECTED);
  ExpectUnharmed();
}

// A refusal that repeats what it refuses is as large.
TEST_F(HostileMemberTest, AJoinOfSixtyMebibytesGetsAShortAnswer) {
  for (const bool in_hash : {true, false}) {
    wire::JoinRequest join = JoinOf(wire::JoinRequest::SERVER, 1, 3);
    (in_hash ? join.mutable_config_hash() : join.mutable_job())
        ->assign(60 << 20, 'x');
    const wire::JoinReply reply = attacker_->Join(join);
    EXPECT_EQ(reply.code(), wire::REJECTED);
    EXPECT_LT(reply.error().size(), 1000u);
  }
  wire::JoinRequest join = JoinOf(wire::JoinRequest::WORKER, 0, 3);
  for (int i = 0; i < 25'000'000; ++i) join.mutable_table(0)->add_shape(1);
  EXPECT_EQ(attacker_->Join(join).code(), wire::REJECTED);
  ExpectUnharmed();
}

TEST_F(HostileMemberTest, LoadsThatCannotBeDoNotReachThePlanner) {
  wire::Heartbeat heartbeat;
  heartbeat.set_incarnation(server_life_);
  for (const float bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    run::ThreadLoad& load = *heartbeat.mutable_server()->add_thread();
    load.set_utilisation(0.5);
    load.set_bytes_per_busy_second(1e9);
    load.add_shard()->set_busy(bad);
    EXPECT_EQ(server_->Beat(heartbeat).code(), wire::OK);
    wire::Call call;
    call.set_call_id(++calls_);
    call.mutable_rebalance();
    attacker_->Call(call);
    heartbeat.clear_server();
  }
  ExpectUnharmed();
}

TEST_F(HostileMemberTest, AWorkerHasNothingToSayForServers) {
  wire::Heartbeat heartbeat;
  heartbeat.set_incarnation(worker_life_);
  run::ServerStats& stats = *heartbeat.mutable_server();
  stats.add_nonfinite()->set_gradients(1);
  run::HandOverState& lost = *stats.add_hand_over();
  lost.set_state(run::HandOverState::LOST);
  lost.set_to_server(9);
  EXPECT_EQ(worker_->Beat(heartbeat).code(), wire::OK);
  ExpectUnharmed();
}

TEST_F(HostileMemberTest, OfAShardThatIsNotThereNobodyKnowsThatItIsLost) {
  wire::Heartbeat heartbeat;
  heartbeat.set_incarnation(server_life_);
  for (const int32_t shard : {-1, 1, 1 << 30}) {
    run::HandOverState& lost = *heartbeat.mutable_server()->add_hand_over();
    lost.set_shard(shard);
    lost.set_state(run::HandOverState::LOST);
    lost.set_to_server(9);
    EXPECT_EQ(server_->Beat(heartbeat).code(), wire::OK);
    heartbeat.clear_server();
  }
  ExpectUnharmed();
}

TEST_F(HostileMemberTest, WhoIsNoMemberSpeaksForNone) {
  wire::Heartbeat heartbeat;
  heartbeat.set_incarnation(worker_life_);
  EXPECT_EQ(attacker_->Beat(heartbeat).code(), wire::FENCED);
  wire::Call leave;
  leave.set_call_id(++calls_);
  leave.set_incarnation(worker_life_);
  leave.mutable_leave()->set_failure("tired");
  EXPECT_EQ(attacker_->Call(leave).code(), wire::FENCED);
  wire::Call move;
  move.set_call_id(++calls_);
  for (int i = 0; i < 5'000'000; ++i) move.mutable_move_shards()->add_shard(0);
  EXPECT_EQ(attacker_->Call(move).code(), wire::REJECTED);
  Message view;
  view.header.mutable_view()->set_state(wire::FAILED);
  attacker_->Ask(view,
                 [](const Message& m) { return m.header.has_error_reply(); });
  ExpectUnharmed();
}

}  // namespace slackline::hostile_member_test
