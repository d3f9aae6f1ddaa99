// Goal: what only the server's own control thread may say to a shard thread is
// not accepted from anybody else, whatever he calls himself; the state of its
// shards at a cut is given on; a checkpoint that cannot be read ends it; it
// listens in the ways that the config allows.
// Method: a shard thread with real sockets; the hostile peer comes by TCP.
#include "server/shard/shard_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/endpoint.h"
#include "common/net/poller.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "server/shard/control_endpoint.h"
#include "tests/support/floats.h"
#include "tests/support/must.h"

namespace slackline::shard_thread_test {

using ::testing::UnorderedElementsAre;

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kControl = {PeerId::Kind::kServer, 0, 1};

std::unique_ptr<ShardThread> StartThread(Transport& transport,
                                         ShardThread::Options options = {}) {
  options.core.self = {.server = 0, .thread = 0};
  options.core.seed = 1;
  options.host = "127.0.0.1";
  options.transport = config::Limits::TCP;
  return Must(ShardThread::Start(transport, options, {}));
}

// Of a job that runs: one shard, which is this thread's.
wire::View RunningView(uint64_t number) {
  wire::View view;
  view.set_number(number);
  view.set_state(wire::RUNNING);
  view.set_steps_total(10);
  view.set_steps_per_epoch(10);
  view.add_phase()->mutable_mode()->mutable_bsp();
  view.add_server()->add_thread();
  wire::Table& table = *view.add_table();
  table.set_name("w");
  table.add_shape(4);
  table.set_shard_elements(4);
  table.mutable_initializer()->set_kind(wire::Initializer::CONSTANT);
  table.mutable_initializer()->set_a(3);
  table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  view.add_owner_server(0);
  view.add_owner_thread(0);
  return view;
}

class TornShards final : public StoredShards {
 public:
  absl::StatusOr<ShardState> Read(const std::string&, const Region&,
                                  const TensorForm&) const override {
    return absl::DataLossError("the part is torn");
  }
};

Message ViewMessage(uint64_t number) {
  Message message;
  message.header.set_view_number(number);
  wire::View& view = *message.header.mutable_view();
  view.set_number(number);
  view.set_state(wire::FORMING);
  return message;
}

Message StatsRequest() {
  Message message;
  message.header.mutable_stats_request();
  return message;
}

// The next message that comes. `From` is a Channel, or a Listener.
template <typename From>
auto Await(From& from) {
  using Received = std::decay_t<decltype(*Must(from.Receive()))>;
  Poller poller;
  poller.Add(from);
  for (const absl::Time end = absl::Now() + kDeadline; absl::Now() < end;) {
    if (auto message = Must(from.Receive())) return *std::move(message);
    EXPECT_TRUE(poller.Wait(end - absl::Now()).ok());
  }
  ADD_FAILURE() << "nothing came";
  return Received();
}

TEST(ShardThreadTest, ListensByTcpAndInTheOtherWaysThatTheConfigAllows) {
  ZmqTransport network;
  ShmTransport transport(network);
  const auto control = Must(transport.Listen({}));
  Must(control->Bind(kControlEndpoint));
  const auto ways = [&](config::Limits::Transport allowed) {
    ShardThread::Options options;
    options.core.self = {.server = 0, .thread = 0};
    options.core.seed = 1;
    options.host = "127.0.0.1";
    options.transport = allowed;
    std::vector<std::string> schemes;
    const auto thread = Must(ShardThread::Start(transport, options, {}));
    for (const std::string& endpoint : thread->endpoints().endpoint()) {
      schemes.emplace_back(FindEndpointKind(endpoint)->scheme);
    }
    return schemes;
  };
  EXPECT_THAT(ways(config::Limits::AUTO),
              UnorderedElementsAre("tcp://", "ipc://", "shm://@"));
  EXPECT_THAT(ways(config::Limits::TCP), UnorderedElementsAre("tcp://"));
  EXPECT_THAT(ways(config::Limits::IPC),
              UnorderedElementsAre("tcp://", "ipc://"));
  EXPECT_THAT(ways(config::Limits::SHM),
              UnorderedElementsAre("tcp://", "shm://@"));
}

TEST(ShardThreadTest, TakesViewsAndGivesStatisticsInsideItsProcessOnly) {
  ZmqTransport transport;
  const auto control = Must(transport.Listen({}));
  Must(control->Bind(kControlEndpoint));
  const std::unique_ptr<ShardThread> thread = StartThread(transport);
  const Listener::Incoming hello = Await(*control);
  ASSERT_TRUE(hello.message.header.has_stats_reply());
  thread->Follow(Must(View::Create(ViewMessage(7).header.view())));
  ASSERT_TRUE(control->Send(hello.from, StatsRequest()).ok());
  Message stats = Await(*control).message;
  ASSERT_TRUE(stats.header.has_stats_reply());
  EXPECT_EQ(stats.header.view_number(), 7);

  const auto stranger = Must(
      transport.Connect(kControl, NetworkEndpoint(thread->endpoints()), {}));
  ASSERT_TRUE(control->Send(hello.from, ViewMessage(8))
                  .ok());  // Views are no messages here.
  for (const Message& message : {ViewMessage(8), StatsRequest()}) {
    ASSERT_TRUE(stranger->Send(message).ok());
    EXPECT_FALSE(Await(*stranger).header.has_stats_reply());
  }
  ASSERT_TRUE(control->Send(hello.from, StatsRequest()).ok());
  stats = Await(*control).message;
  ASSERT_TRUE(stats.header.has_stats_reply());
  EXPECT_EQ(stats.header.view_number(), 7);
  EXPECT_TRUE(thread->failure().ok());
}

// What it reports as busy is what it slept as well, so that others believe it.
TEST(ShardThreadTest, ASlowOneTakesManyTimesItsProcessorTime) {
  constexpr double kSlowdown = 50;
  ZmqTransport transport;
  const auto control = Must(transport.Listen({}));
  Must(control->Bind(kControlEndpoint));
  ShardThread::Options options;
  options.slowdown = kSlowdown;
  const std::unique_ptr<ShardThread> thread = StartThread(transport, options);
  const PeerId self = Await(*control).from;
  run::ThreadLoad load;
  for (int i = 0; i < 500; ++i) {
    ASSERT_TRUE(control->Send(self, StatsRequest()).ok());
    load = Await(*control).message.header.stats_reply().stats().thread(0);
  }
  EXPECT_GT(load.cpu(), 0);
  // Short sleeps are saved up; a busy machine only adds to it.
  EXPECT_GT(load.utilisation(), kSlowdown / 2 * load.cpu());
}

TEST(ShardThreadTest, GivesOnWhatItsShardsAreAtACut) {
  ZmqTransport transport;
  const auto control = Must(transport.Listen({}));
  Must(control->Bind(kControlEndpoint));
  std::promise<ShardCore::CutState> given;
  ShardThread::Options options;
  options.on_cut = [&](ShardCore::CutState state) {
    given.set_value(std::move(state));  // A second time would throw.
  };
  const std::unique_ptr<ShardThread> thread = StartThread(transport, options);
  wire::View view = RunningView(7);
  view.set_run(5);
  view.mutable_cut()->set_number(2);  // At clock 0, where it is.
  thread->Follow(Must(View::Create(view)));
  std::future<ShardCore::CutState> arrives = given.get_future();
  ASSERT_EQ(arrives.wait_for(std::chrono::seconds(30)),
            std::future_status::ready);
  const ShardCore::CutState state = arrives.get();
  EXPECT_EQ(state.number, 2);
  EXPECT_EQ(state.run, 5u);
  ASSERT_EQ(state.shards.size(), 1u);
  EXPECT_EQ(First(state.shards[0].values), 3);
  view.set_number(8);
  thread->Follow(Must(View::Create(view)));
  const Listener::Incoming hello = Await(*control);
  ASSERT_TRUE(control->Send(hello.from, StatsRequest()).ok());
  EXPECT_EQ(Await(*control).message.header.view_number(), 8);
}

TEST(ShardThreadTest, StopsIfItsShardsCannotBeRead) {
  ZmqTransport transport;
  const auto control = Must(transport.Listen({}));
  Must(control->Bind(kControlEndpoint));
  ShardThread::Options options;
  options.core.stored = std::make_shared<TornShards>();
  const std::unique_ptr<ShardThread> thread = StartThread(transport, options);
  EXPECT_TRUE(thread->failure().ok());
  thread->Follow(Must(View::Create(RunningView(7))));
  const absl::Time end = absl::Now() + kDeadline;
  while (thread->failure().ok() && absl::Now() < end)
    absl::SleepFor(absl::Milliseconds(1));
  const std::string why = thread->failure().ToString();
  EXPECT_NE(why.find("shard thread 0: cannot begin with shard w[0, 4)"),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("the part is torn"), std::string::npos) << why;
}

}  // namespace slackline::shard_thread_test
