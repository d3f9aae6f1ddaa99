// The ZeroMQ transport over real sockets of this host.
#include "common/net/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "absl/time/clock.h"
#include "common/net/header_codec.h"
#include "common/net/host_id.h"
#include "common/net/poller.h"
#include "common/rng.h"

namespace slackline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kWorker = {PeerId::Kind::kWorker, 2, 17};

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) {
    ADD_FAILURE() << value.status();
    std::abort();
  }
  return std::move(value).value();
}

void Must(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

// Waits on `socket` until it has a message; nullopt after the deadline.
template <typename SocketType>
auto ReceiveWithin(SocketType& socket, absl::Duration wait_max = kDeadline) {
  Poller poller;
  poller.Add(socket);
  const absl::Time deadline = absl::Now() + wait_max;
  auto received = Must(socket.Receive());
  while (!received.has_value() && absl::Now() < deadline) {
    Must(poller.Wait(deadline - absl::Now()));
    received = Must(socket.Receive());
  }
  return received;
}

// True once `condition` holds, false after the deadline.
bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

Payload RandomPayload(size_t bytes, uint64_t seed) {
  Rng rng(seed);
  Payload payload = Payload::Allocate(bytes);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t value = rng.Next();
    std::memcpy(payload.MutableData() + i, &value,
                std::min<size_t>(8, bytes - i));
  }
  return payload;
}

bool SameBytes(const Payload& a, const Payload& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

Message Pull(uint64_t request_id) {
  Message message;
  message.header.mutable_pull_request()->set_request_id(request_id);
  return message;
}

// Sends and waits for the answer to `request_id`, as a client that works.
void ExpectServes(RouterSocket& router, DealerSocket& dealer,
                  uint64_t request_id) {
  Must(dealer.Send(Pull(request_id)));
  const auto request = ReceiveWithin(router);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->message.header.pull_request().request_id(), request_id);
  Must(router.Send(request->from, request->message));
  const auto reply = ReceiveWithin(dealer);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.pull_request().request_id(), request_id);
}

// A peer that does not keep to the protocol.
class RawDealer {
 public:
  RawDealer(const std::string& endpoint, const std::string& routing_id)
      : socket_(context_, ZMQ_DEALER) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvtimeo,
                static_cast<int>(absl::ToInt64Milliseconds(kDeadline)));
    if (!routing_id.empty()) {
      socket_.set(zmq::sockopt::routing_id, routing_id);
    }
    socket_.connect(endpoint);
  }

  void Send(const std::vector<std::string>& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto flags = i + 1 < frames.size() ? zmq::send_flags::sndmore
                                               : zmq::send_flags::none;
      ASSERT_TRUE(socket_.send(zmq::buffer(frames[i]), flags).has_value());
    }
  }

  // Text of the ErrorReply that comes next.
  std::string ReceiveError() {
    zmq::message_t frame;
    if (!socket_.recv(frame).has_value()) return "no reply";
    wire::Header header;
    const absl::Status parsed =
        ParseHeader({frame.data<std::byte>(), frame.size()}, &header);
    return parsed.ok() ? header.error_reply().error() : parsed.ToString();
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_;
};

std::string PullFrame() { return Pull(1).header.SerializeAsString(); }

enum class Via { kTcp, kIpc, kInproc };

class TransportTest : public ::testing::TestWithParam<Via> {
 protected:
  static std::string Endpoint() {
    switch (GetParam()) {
      case Via::kTcp:
        return "tcp://127.0.0.1:0";
      case Via::kIpc:
        return UniqueIpcEndpoint();
      case Via::kInproc:
        return "inproc://router";
    }
    return "";
  }
};

std::string NameOf(const ::testing::TestParamInfo<Via>& info) {
  constexpr const char* kNames[] = {"Tcp", "Ipc", "Inproc"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Endpoints, TransportTest,
                         ::testing::Values(Via::kTcp, Via::kIpc, Via::kInproc),
                         NameOf);

TEST_P(TransportTest, RoundTripKeepsHeaderAndPayloadsOfAllSizes) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  const std::string endpoint = Must(router->Bind(Endpoint()));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(endpoint));

  Message push;
  push.header.set_view_number(7);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{33}, size_t{34}, size_t{2047},
        kZeroCopyBytes, size_t{4096}, size_t{5} << 20}) {
    const int shard = static_cast<int>(push.payloads.size());
    push.header.mutable_push_request()->add_shard(shard);
    push.payloads.push_back(RandomPayload(bytes, shard));
  }
  Must(dealer->Send(push));

  const auto request = ReceiveWithin(*router);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->from, kWorker);
  Must(router->Send(request->from, request->message));
  const auto reply = ReceiveWithin(*dealer);
  ASSERT_TRUE(reply.has_value());
  for (const Message* message : {&request->message, &*reply}) {
    EXPECT_EQ(message->header.SerializeAsString(),
              push.header.SerializeAsString());
    ASSERT_EQ(message->payloads.size(), push.payloads.size());
    for (size_t i = 0; i < push.payloads.size(); ++i) {
      EXPECT_TRUE(SameBytes(message->payloads[i], push.payloads[i])) << i;
    }
  }
  EXPECT_EQ(Must(router->Receive()), std::nullopt);
  EXPECT_EQ(router->malformed_count(), 0);
}

TEST_P(TransportTest, ReceivedPayloadOutlivesSocketsAndContext) {
  Message push = Pull(1);
  for (const size_t bytes : {33, 4096, 1 << 20}) {
    push.payloads.push_back(RandomPayload(bytes, bytes));
  }
  std::optional<RouterSocket::Incoming> received;
  {
    NetContext context;
    auto router = Must(RouterSocket::Create(context));
    auto dealer = Must(DealerSocket::Create(context, kWorker));
    Must(dealer->Connect(Must(router->Bind(Endpoint()))));
    Must(dealer->Send(push));
    received = ReceiveWithin(*router);
  }
  ASSERT_TRUE(received.has_value());
  ASSERT_EQ(received->message.payloads.size(), push.payloads.size());
  for (size_t i = 0; i < push.payloads.size(); ++i) {
    EXPECT_TRUE(SameBytes(received->message.payloads[i], push.payloads[i]))
        << i;
  }
}

TEST_P(TransportTest, SentPayloadIsReleasedOnceDelivered) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(Must(router->Bind(Endpoint()))));
  const Payload payload = RandomPayload(1 << 20, 1);
  Message push = Pull(1);
  push.payloads.push_back(payload);
  Must(dealer->Send(push));
  push.payloads.clear();
  ASSERT_TRUE(ReceiveWithin(*router).has_value());
  EXPECT_TRUE(Eventually([&] { return payload.unique(); }));
}

TEST_P(TransportTest, PayloadOfARefusedMessageIsReleased) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  Must(router->Bind(Endpoint()).status());
  const Payload payload = RandomPayload(1 << 20, 1);
  Message reply = Pull(1);
  reply.payloads.push_back(payload);
  EXPECT_TRUE(absl::IsNotFound(router->Send(kWorker, reply)));
  reply.payloads.clear();
  EXPECT_TRUE(payload.unique());
}

TEST_P(TransportTest, SendToAnUnknownPeerIsNotFoundAndNamesIt) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(Must(router->Bind(Endpoint()))));
  const absl::Status status =
      router->Send({PeerId::Kind::kWorker, 3, 99}, Pull(1));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker.3.99"));
  EXPECT_EQ(router->dropped_count(), 1);
  ExpectServes(*router, *dealer, 1);
}

// Each garbled message is counted and answered, and a good peer is served after
// each as before.
TEST(MalformedMessages, AreCountedAnsweredAndDisturbNobody) {
  NetContext context;
  auto router = Must(RouterSocket::Create(
      context, {.payloads_max = 4, .message_bytes_max = 1000}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(endpoint));

  struct Case {
    std::string routing_id;
    std::vector<std::string> frames;
    std::string error;
  };
  const std::string half(600, 'x');
  const std::vector<Case> cases = {
      {"worker.0.1", {"\xff\xff garbage"}, "no slackline.wire.Header"},
      {"worker.0.2", {"\xff garbage", "a", "b", "c"}, "no slackline.wire"},
      {"worker.0.3", {""}, "no body"},
      {"", {PullFrame()}, "is not a peer id"},
      {"nobody", {PullFrame()}, "\"nobody\" is not a peer id"},
      {"worker.00.4", {PullFrame()}, "is not a peer id"},
      {"worker.0.5", {PullFrame(), "1", "2", "3", "4", "5"}, "more than 4"},
      {"worker.0.6", {PullFrame(), half, half}, "more than 1000 bytes"},
  };
  int64_t malformed = 0;
  for (const Case& test : cases) {
    SCOPED_TRACE(test.error);
    RawDealer raw(endpoint, test.routing_id);
    raw.Send(test.frames);
    ++malformed;
    ASSERT_TRUE(Eventually([&] {
      EXPECT_EQ(Must(router->Receive()), std::nullopt);
      return router->malformed_count() >= malformed;
    }));
    EXPECT_EQ(router->malformed_count(), malformed);
    EXPECT_THAT(raw.ReceiveError(), HasSubstr(test.error));
    ExpectServes(*router, *dealer, malformed);
  }
}

TEST(MalformedMessages, FloodDoesNotHoldUpTheCaller) {
  constexpr int kFlood = 500;
  NetContext context;
  auto router =
      Must(RouterSocket::Create(context, {.receive_queue_max = 2 * kFlood}));
  const std::string endpoint = Must(router->Bind(UniqueIpcEndpoint()));
  RawDealer raw(endpoint, "worker.0.1");
  for (int i = 0; i < kFlood; ++i) raw.Send({"garbage"});
  int64_t most_in_a_call = 0;
  ASSERT_TRUE(Eventually([&] {
    const int64_t before = router->malformed_count();
    EXPECT_EQ(Must(router->Receive()), std::nullopt);
    most_in_a_call =
        std::max(most_in_a_call, router->malformed_count() - before);
    return router->malformed_count() == kFlood;
  }));
  EXPECT_LT(most_in_a_call, kFlood / 2);
}

TEST(MalformedMessages, FrameBeyondTheBoundEndsOnlyItsOwnConnection) {
  NetContext context;
  auto router =
      Must(RouterSocket::Create(context, {.message_bytes_max = 1000}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(endpoint));
  ExpectServes(*router, *dealer, 1);
  RawDealer raw(endpoint, "worker.0.1");
  raw.Send({PullFrame()});
  ASSERT_TRUE(ReceiveWithin(*router).has_value());
  raw.Send({PullFrame(), std::string(100000, 'x')});
  // The peer is gone as soon as its connection has been ended.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Must(router->Receive()), std::nullopt);
    return absl::IsNotFound(
        router->Send({PeerId::Kind::kWorker, 0, 1}, Pull(1)));
  }));
  ExpectServes(*router, *dealer, 2);
}

TEST(MalformedMessages, FromTheServerAreCountedAndSkipped) {
  zmq::context_t raw_context;
  zmq::socket_t raw(raw_context, ZMQ_ROUTER);
  raw.set(zmq::sockopt::linger, 0);
  raw.set(zmq::sockopt::router_mandatory, true);
  raw.bind("tcp://127.0.0.1:0");
  NetContext context;
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(raw.get(zmq::sockopt::last_endpoint)));
  Must(dealer->Send(Pull(1)));
  zmq::message_t id;
  zmq::message_t header;
  ASSERT_TRUE(raw.recv(id).has_value());
  ASSERT_TRUE(raw.recv(header).has_value());
  for (const std::string& text : {std::string("\xff\xff"), PullFrame()}) {
    zmq::message_t to(id.data(), id.size());
    raw.send(to, zmq::send_flags::sndmore);
    raw.send(zmq::buffer(text));
  }
  const auto reply = ReceiveWithin(*dealer);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.pull_request().request_id(), 1);
  EXPECT_EQ(dealer->malformed_count(), 1);
}

TEST(FullQueue, ToOnePeerIsResourceExhaustedUntilThePeerReads) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context, {.send_queue_max = 2}));
  auto dealer =
      Must(DealerSocket::Create(context, kWorker, {.receive_queue_max = 2}));
  Must(dealer->Connect(Must(router->Bind("inproc://router"))));
  ExpectServes(*router, *dealer, 0);
  int accepted = 0;
  absl::Status status;
  while (accepted < 100 &&
         (status = router->Send(kWorker, Pull(accepted))).ok()) {
    ++accepted;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker.2.17"));
  EXPECT_EQ(router->dropped_count(), 1);
  // What was accepted arrives, in order, and then there is room again.
  for (int i = 0; i < accepted; ++i) {
    const auto message = ReceiveWithin(*dealer);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->header.pull_request().request_id(), i);
  }
  ExpectServes(*router, *dealer, 1);
}

TEST(FullQueue, OfADealerWithoutAConnectionIsResourceExhausted) {
  NetContext context;
  auto dealer = Must(DealerSocket::Create(
      context, kWorker, {.send_queue_max = 2, .linger = absl::ZeroDuration()}));
  Must(dealer->Connect(UniqueIpcEndpoint()));
  Must(dealer->Send(Pull(1)));
  Must(dealer->Send(Pull(2)));
  EXPECT_TRUE(absl::IsResourceExhausted(dealer->Send(Pull(3))));
  EXPECT_EQ(dealer->dropped_count(), 1);
}

TEST(Bounds, TooLargeMessagesAreRefusedBeforeTheyAreSent) {
  NetContext context;
  auto dealer = Must(DealerSocket::Create(context, kWorker,
                                          {.payloads_max = 2,
                                           .message_bytes_max = 1000,
                                           .linger = absl::ZeroDuration()}));
  Must(dealer->Connect(UniqueIpcEndpoint()));
  Message many = Pull(1);
  many.payloads.resize(3);
  absl::Status status = dealer->Send(many);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("3 payloads, at most 2"));
  Message large = Pull(1);
  large.payloads.push_back(RandomPayload(1000, 1));
  status = dealer->Send(large);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 1000"));
}

TEST(Bounds, ImpossibleOptionsAreRefusedByName) {
  NetContext context;
  const absl::Status status =
      RouterSocket::Create(context, {.receive_queue_max = 0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("receive_queue_max is 0, at least 1"));
}

class ReconnectTest : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Endpoints, ReconnectTest,
                         ::testing::Values(Via::kTcp, Via::kIpc), NameOf);

TEST_P(ReconnectTest, DealerFindsARouterThatComesBack) {
  NetContext context;
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  std::string endpoint = Endpoint();
  for (uint64_t life = 1; life <= 2; ++life) {
    // The end of the context waits for the end of the listener.
    NetContext server_context;
    auto router = Must(RouterSocket::Create(server_context));
    endpoint = Must(router->Bind(endpoint));
    if (life == 1) Must(dealer->Connect(endpoint));
    // What is sent into a breaking connection is lost: repeat, as protocols do.
    std::optional<Message> reply;
    ASSERT_TRUE(Eventually([&] {
      Must(dealer->Send(Pull(life)));
      const auto request = ReceiveWithin(*router, absl::Milliseconds(20));
      if (!request.has_value()) return false;
      Must(router->Send(request->from, request->message));
      reply = ReceiveWithin(*dealer);
      return true;
    }));
    ASSERT_TRUE(reply.has_value());
  }
}

TEST_P(ReconnectTest, LatestConnectionOfAPeerTakesOver) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  const std::string endpoint = Must(router->Bind(Endpoint()));
  auto first = Must(DealerSocket::Create(context, kWorker));
  Must(first->Connect(endpoint));
  ExpectServes(*router, *first, 1);
  auto second = Must(DealerSocket::Create(context, kWorker));
  Must(second->Connect(endpoint));
  ExpectServes(*router, *second, 2);
}

TEST(RouterSocketTest, ServesTcpAndIpcAtTheSameTime) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  const std::string tcp = Must(router->Bind("tcp://127.0.0.1:0"));
  const std::string ipc = Must(router->Bind(UniqueIpcEndpoint()));
  auto over_tcp = Must(DealerSocket::Create(context, kWorker));
  Must(over_tcp->Connect(tcp));
  auto over_ipc =
      Must(DealerSocket::Create(context, {PeerId::Kind::kWorker, 3, 18}));
  Must(over_ipc->Connect(ipc));
  ExpectServes(*router, *over_tcp, 1);
  ExpectServes(*router, *over_ipc, 2);
}

TEST(RouterSocketTest, BindToAUsedPortNamesItAndTheFix) {
  NetContext context;
  auto first = Must(RouterSocket::Create(context));
  const std::string endpoint = Must(first->Bind("tcp://127.0.0.1:0"));
  auto second = Must(RouterSocket::Create(context));
  const absl::Status status = second->Bind(endpoint).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(endpoint));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("another job or program holds the port; set "
                        "coordinator { port: ... }"));
}

TEST(RouterSocketTest, BindToAForeignAddressOrNoEndpointSaysWhatToGive) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  // 192.0.2.0/24 is reserved for documentation (RFC 5737).
  EXPECT_THAT(std::string(router->Bind("tcp://192.0.2.1:0").status().message()),
              HasSubstr("not one of this host"));
  EXPECT_THAT(std::string(router->Bind("127.0.0.1:0").status().message()),
              HasSubstr("an endpoint is tcp://"));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  EXPECT_THAT(std::string(dealer->Connect("127.0.0.1:0").message()),
              HasSubstr("an endpoint is tcp://"));
}

// Both sides send between receiving and waiting, where news about a message may
// be taken in by the send: a missed one would end in the deadline.
class PollerSpinTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(SpinMicroseconds, PollerSpinTest,
                         ::testing::Values(0, 50));

TEST_P(PollerSpinTest, MissesNoMessageBetweenSends) {
  constexpr uint64_t kMessages = 5000;
  constexpr uint64_t kWindow = 3;
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(Must(router->Bind("tcp://127.0.0.1:0"))));
  const Poller::Options options = {.spin_max = absl::Microseconds(GetParam())};
  std::thread server([&] {
    Poller poller(options);
    poller.Add(*router);
    for (uint64_t i = 0; i < kMessages;) {
      const absl::Time start = absl::Now();
      Must(poller.Wait(kDeadline));
      ASSERT_LT(absl::Now() - start, kDeadline) << "after " << i;
      while (const auto request = Must(router->Receive())) {
        Must(router->Send(request->from, request->message));
        ++i;
      }
    }
  });
  Poller poller(options);
  poller.Add(*dealer);
  for (uint64_t sent = 0, received = 0; received < kMessages;) {
    while (sent < kMessages && sent < received + kWindow) {
      Must(dealer->Send(Pull(sent++)));
    }
    const absl::Time start = absl::Now();
    Must(poller.Wait(kDeadline));
    ASSERT_LT(absl::Now() - start, kDeadline) << "after " << received;
    while (const auto reply = Must(dealer->Receive())) {
      ASSERT_EQ(reply->header.pull_request().request_id(), received);
      ++received;
    }
  }
  server.join();
}

TEST(PollerTest, AWaitUntilATimeThatIsOverEndsAtOnce) {
  Waker waker;
  Poller poller;
  poller.Add(waker);
  EXPECT_TRUE(poller.Wait(absl::Milliseconds(-5)).ok());
  EXPECT_TRUE(poller.Wait(-absl::InfiniteDuration()).ok());
}

TEST(PollerTest, RemovedSocketNoLongerEndsAWait) {
  NetContext context;
  auto router = Must(RouterSocket::Create(context));
  auto dealer = Must(DealerSocket::Create(context, kWorker));
  Must(dealer->Connect(Must(router->Bind("inproc://router"))));
  Must(dealer->Send(Pull(1)));
  Waker waker;
  Poller poller;
  poller.Add(*router);
  poller.Add(waker);
  poller.Remove(*router);
  const absl::Time start = absl::Now();
  Must(poller.Wait(absl::Milliseconds(5)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(4));
}

// Two threads take turns by waking each other: one lost wake ends in the
// deadline. Most wakes find the other thread asleep or falling asleep.
TEST(WakerTest, WakesABlockedPollerEveryTime) {
  constexpr int kTurns = 20000;
  std::atomic<int> turn{0};
  Waker wakers[2];
  const auto play = [&](int player) {
    Poller poller({.spin_max = absl::ZeroDuration()});
    poller.Add(wakers[player]);
    for (int mine = player; mine < kTurns; mine += 2) {
      for (;;) {
        wakers[player].Drain();
        if (turn.load() == mine) break;
        const absl::Time start = absl::Now();
        Must(poller.Wait(kDeadline));
        ASSERT_LT(absl::Now() - start, kDeadline) << "lost wake " << mine;
      }
      turn.store(mine + 1);
      wakers[1 - player].Wake();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(turn.load(), kTurns);
}

TEST(HeaderCodec, RoundTrip) {
  const Message message = Pull(12345);
  std::string bytes(HeaderBytes(message.header), '\0');
  SerializeHeader(message.header, bytes.data());
  wire::Header parsed;
  Must(ParseHeader(
      {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
      &parsed));
  EXPECT_EQ(parsed.pull_request().request_id(), 12345);
}

TEST(HostIdTest, IsTheSameEachTimeAndNamesThisBoot) {
  EXPECT_EQ(HostId(), HostId());
  EXPECT_THAT(HostId(), HasSubstr("/net:["));
  EXPECT_NE(UniqueIpcEndpoint(), UniqueIpcEndpoint());
}

}  // namespace
}  // namespace slackline
