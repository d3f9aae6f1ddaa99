// Goal: what only the server's own control thread may say to a shard thread is
// not accepted from anybody else, whatever he calls himself.
// Method: a shard thread with real sockets; the hostile peer comes by TCP.
#include "server/shard/shard_thread.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "server/control_endpoint.h"
#include "tests/support/must.h"

namespace slackline {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kControl = {PeerId::Kind::kServer, 0, 1};

std::unique_ptr<ShardThread> StartThread(Transport& transport) {
  ShardThread::Options options;
  options.core = {.self = {.server = 0, .thread = 0}, .seed = 1};
  options.host = "127.0.0.1";
  options.transport = config::Limits::TCP;
  return Must(ShardThread::Start(transport, options, {}));
}

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

  const auto stranger =
      Must(transport.Connect(kControl, thread->endpoints().tcp(), {}));
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

}  // namespace
}  // namespace slackline
