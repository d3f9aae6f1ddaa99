// The transports over real sockets and memory of this host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "absl/time/clock.h"
#include "common/metrics/refusals.h"
#include "common/net/header_codec.h"
#include "common/net/host_id.h"
#include "common/net/payload_frames.h"
#include "common/net/poller.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/rng.h"
#include "common/status.h"
#include "tests/support/must.h"
#include "tests/support/payloads.h"

namespace slackline::transport_test {

using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kWorker = {PeerId::Kind::kWorker, 2, 17};

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

Message Probe(uint64_t request_id) {
  Message message;
  message.header.mutable_probe_request()->set_request_id(request_id);
  return message;
}

// Sends and waits for the answer to `request_id`, as a client that works.
void ExpectServes(Listener& router, Channel& dealer, uint64_t request_id) {
  Must(dealer.Send(Probe(request_id)));
  const auto request = ReceiveWithin(router);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->message.header.probe_request().request_id(), request_id);
  Must(router.Send(request->from, request->message));
  const auto reply = ReceiveWithin(dealer);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.probe_request().request_id(), request_id);
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

std::string ProbeFrame() { return Probe(1).header.SerializeAsString(); }

// A header frame of payloads of these sizes that share frames.
std::string SizesFrame(const std::vector<size_t>& sizes) {
  std::vector<Payload> payloads;
  for (const size_t size : sizes) payloads.push_back(Payload::Allocate(size));
  std::string frame(PayloadSizesBytes(sizes.size()), '\0');
  WritePayloadSizes(payloads, reinterpret_cast<std::byte*>(frame.data()));
  return frame + ProbeFrame();
}

enum class Via { kTcp, kIpc, kInproc, kShm };

// As the programs have it.
class AnyTransport : public Transport {
 public:
  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override {
    return shm_.Listen(options);
  }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override {
    return shm_.Connect(self, endpoint, options);
  }
  std::vector<std::string> EndpointsAt(const Place& place) override {
    return shm_.EndpointsAt(place);
  }
  std::shared_ptr<PayloadMemory> memory() override { return shm_.memory(); }

 private:
  ZmqTransport zmq_;
  ShmTransport shm_{zmq_};
};

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
      case Via::kShm:
        return UniqueShmEndpoint();
    }
    return "";
  }
};

std::string NameOf(const ::testing::TestParamInfo<Via>& info) {
  constexpr const char* kNames[] = {"Tcp", "Ipc", "Inproc", "Shm"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Endpoints, TransportTest,
                         ::testing::Values(Via::kTcp, Via::kIpc, Via::kInproc,
                                           Via::kShm),
                         NameOf);

TEST_P(TransportTest, RoundTripKeepsHeaderAndPayloadsOfAllSizes) {
  AnyTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind(Endpoint()));
  auto dealer = Must(context.Connect(kWorker, endpoint, {}));

  Message push;
  push.header.set_view_number(7);
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{33}, size_t{34}, size_t{2047},
        kZeroCopyBytes, size_t{4096}, size_t{5} << 20}) {
    const int shard = static_cast<int>(push.payloads.size());
    push.header.mutable_push_request()->add_push()->set_shard(shard);
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
  EXPECT_EQ(router->counts().malformed, 0);
}

TEST_P(TransportTest, PayloadsThatLieSideBySideStayWhatTheyAre) {
  AnyTransport context;
  auto router = Must(context.Listen({}));
  auto dealer =
      Must(context.Connect(kWorker, Must(router->Bind(Endpoint())), {}));
  const Payload whole = RandomPayload(1 << 20, 1);
  const Payload other = RandomPayload(300, 2);
  Message push = Probe(1);
  push.payloads = {whole.Slice(0, 400'000),
                   whole.Slice(400'000, 100),
                   Payload(),
                   whole.Slice(400'100, 600'000),
                   other,
                   other.Slice(100, 150),
                   RandomPayload(70'000, 3)};
  Must(dealer->Send(push));
  const auto request = ReceiveWithin(*router);
  ASSERT_TRUE(request.has_value());
  Must(router->Send(request->from, request->message));
  const auto reply = ReceiveWithin(*dealer);
  ASSERT_TRUE(reply.has_value());
  for (const Message* message : {&request->message, &*reply}) {
    EXPECT_EQ(message->header.probe_request().request_id(), 1u);
    ASSERT_EQ(message->payloads.size(), push.payloads.size());
    for (size_t i = 0; i < push.payloads.size(); ++i)
      EXPECT_TRUE(SameBytes(message->payloads[i], push.payloads[i])) << i;
  }
}

// What is held of a message is counted by the bytes of payloads.
TEST(SharedFrame, IsNotKeptAliveByASmallPart) {
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  auto dealer = Must(
      context.Connect(kWorker, Must(router->Bind("tcp://127.0.0.1:0")), {}));
  constexpr size_t kLarge = size_t{1} << 20;
  const Payload whole = RandomPayload(kLarge + kLarge / 8 + 4096, 1);
  Message push = Probe(1);
  push.payloads = {whole.Slice(0, kLarge), whole.Slice(kLarge, kLarge / 8),
                   whole.Slice(kLarge + kLarge / 8, 4096)};
  Must(dealer->Send(push));
  const auto request = ReceiveWithin(*router);
  ASSERT_TRUE(request.has_value());
  const std::vector<Payload>& payloads = request->message.payloads;
  ASSERT_EQ(payloads.size(), 3u);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(SameBytes(payloads[i], push.payloads[i])) << i;
  EXPECT_EQ(payloads[1].data(), payloads[0].data() + kLarge);
  EXPECT_FALSE(payloads[1].unique()) << "it is a part of the frame";
  EXPECT_TRUE(payloads[2].unique()) << "it has memory of its own";
}

TEST_P(TransportTest, ReceivedPayloadOutlivesSocketsAndContext) {
  Message push = Probe(1);
  for (const size_t bytes : {33, 4096, 1 << 20}) {
    push.payloads.push_back(RandomPayload(bytes, bytes));
  }
  std::optional<Listener::Incoming> received;
  {
    AnyTransport context;
    auto router = Must(context.Listen({}));
    auto dealer =
        Must(context.Connect(kWorker, Must(router->Bind(Endpoint())), {}));
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
  AnyTransport context;
  auto router = Must(context.Listen({}));
  auto dealer =
      Must(context.Connect(kWorker, Must(router->Bind(Endpoint())), {}));
  const Payload payload = RandomPayload(1 << 20, 1);
  Message push = Probe(1);
  push.payloads.push_back(payload);
  Must(dealer->Send(push));
  push.payloads.clear();
  ASSERT_TRUE(ReceiveWithin(*router).has_value());
  EXPECT_TRUE(Eventually([&] { return payload.unique(); }));
}

TEST_P(TransportTest, PayloadOfARefusedMessageIsReleased) {
  AnyTransport context;
  auto router = Must(context.Listen({}));
  Must(router->Bind(Endpoint()).status());
  const Payload payload = RandomPayload(1 << 20, 1);
  Message reply = Probe(1);
  reply.payloads.push_back(payload);
  EXPECT_TRUE(absl::IsNotFound(router->Send(kWorker, reply)));
  reply.payloads.clear();
  EXPECT_TRUE(payload.unique());
}

TEST_P(TransportTest, SendToAnUnknownPeerIsNotFoundAndNamesIt) {
  AnyTransport context;
  auto router = Must(context.Listen({}));
  auto dealer =
      Must(context.Connect(kWorker, Must(router->Bind(Endpoint())), {}));
  const absl::Status status =
      router->Send({PeerId::Kind::kWorker, 3, 99}, Probe(1));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker.3.99"));
  EXPECT_EQ(router->counts().dropped, 1);
  ExpectServes(*router, *dealer, 1);
}

// Each garbled message is counted and answered, and a good peer is served after
// each as before.
TEST(MalformedMessages, AreCountedAnsweredAndDisturbNobody) {
  ZmqTransport context;
  auto router =
      Must(context.Listen({.payloads_max = 4, .message_bytes_max = 1000}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(context.Connect(kWorker, endpoint, {}));

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
      {"", {ProbeFrame()}, "is not a peer id"},
      {"nobody", {ProbeFrame()}, "is not a peer id"},
      {"worker.00.4", {ProbeFrame()}, "is not a peer id"},
      {"worker.0.5", {ProbeFrame(), "1", "2", "3", "4", "5"}, "more than 4"},
      {"worker.0.6", {ProbeFrame(), half, half}, "more than 1000 bytes"},
      {"worker.0.7", {SizesFrame({3, 4}), "1234567", "8"}, "frame of 1 bytes"},
      {"worker.0.8", {SizesFrame({3, 4}), "123"}, "1 of the 2 payloads"},
      {"worker.0.9", {SizesFrame({1, 1, 1, 1, 1}), "12345"}, "at most 4"},
  };
  int64_t malformed = 0;
  for (const Case& test : cases) {
    SCOPED_TRACE(test.error);
    RawDealer raw(endpoint, test.routing_id);
    raw.Send(test.frames);
    ++malformed;
    ASSERT_TRUE(Eventually([&] {
      EXPECT_EQ(Must(router->Receive()), std::nullopt);
      return router->counts().malformed >= malformed;
    }));
    EXPECT_EQ(router->counts().malformed, malformed);
    EXPECT_THAT(raw.ReceiveError(), HasSubstr(test.error));
    ExpectServes(*router, *dealer, malformed);
  }
}

TEST(MalformedMessages, FloodDoesNotHoldUpTheCaller) {
  constexpr int kFlood = 500;
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind(UniqueIpcEndpoint()));
  RawDealer raw(endpoint, "worker.0.1");
  for (int i = 0; i < kFlood; ++i) raw.Send({"garbage"});
  int64_t most_in_a_call = 0;
  ASSERT_TRUE(Eventually([&] {
    const int64_t before = router->counts().malformed;
    EXPECT_EQ(Must(router->Receive()), std::nullopt);
    most_in_a_call =
        std::max(most_in_a_call, router->counts().malformed - before);
    return router->counts().malformed == kFlood;
  }));
  EXPECT_LT(most_in_a_call, kFlood / 2);
}

TEST(MalformedMessages, FrameBeyondTheBoundEndsOnlyItsOwnConnection) {
  ZmqTransport context;
  auto router = Must(context.Listen({.message_bytes_max = 1000}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(context.Connect(kWorker, endpoint, {}));
  ExpectServes(*router, *dealer, 1);
  RawDealer raw(endpoint, "worker.0.1");
  raw.Send({ProbeFrame()});
  ASSERT_TRUE(ReceiveWithin(*router).has_value());
  raw.Send({ProbeFrame(), std::string(100000, 'x')});
  // The peer is gone as soon as its connection has been ended.
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(Must(router->Receive()), std::nullopt);
    return absl::IsNotFound(
        router->Send({PeerId::Kind::kWorker, 0, 1}, Probe(1)));
  }));
  ExpectServes(*router, *dealer, 2);
}

TEST(MalformedMessages, FromTheServerAreCountedAndSkipped) {
  zmq::context_t raw_context;
  zmq::socket_t raw(raw_context, ZMQ_ROUTER);
  raw.set(zmq::sockopt::linger, 0);
  raw.set(zmq::sockopt::router_mandatory, true);
  raw.bind("tcp://127.0.0.1:0");
  ZmqTransport context;
  auto dealer =
      Must(context.Connect(kWorker, raw.get(zmq::sockopt::last_endpoint), {}));
  Must(dealer->Send(Probe(1)));
  zmq::message_t id;
  zmq::message_t header;
  ASSERT_TRUE(raw.recv(id).has_value());
  ASSERT_TRUE(raw.recv(header).has_value());
  for (const std::string& text : {std::string("\xff\xff"), ProbeFrame()}) {
    zmq::message_t to(id.data(), id.size());
    raw.send(to, zmq::send_flags::sndmore);
    raw.send(zmq::buffer(text));
  }
  const auto reply = ReceiveWithin(*dealer);
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.probe_request().request_id(), 1);
  EXPECT_EQ(dealer->counts().malformed, 1);
}

TEST(FullQueue, ToOnePeerIsResourceExhaustedUntilThePeerReads) {
  ZmqTransport context;
  auto router = Must(context.Listen({.send_queue_max = 2}));
  auto dealer =
      Must(context.Connect(kWorker, Must(router->Bind("inproc://router")),
                           {.receive_queue_max = 2}));
  ExpectServes(*router, *dealer, 0);
  int accepted = 0;
  absl::Status status;
  while (accepted < 100 &&
         (status = router->Send(kWorker, Probe(accepted))).ok()) {
    ++accepted;
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker.2.17"));
  EXPECT_EQ(router->counts().dropped, 1);
  // What was accepted arrives, in order, and then there is room again.
  for (int i = 0; i < accepted; ++i) {
    const auto message = ReceiveWithin(*dealer);
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->header.probe_request().request_id(), i);
  }
  ExpectServes(*router, *dealer, 1);
}

TEST(FullQueue, OfADealerWithoutAConnectionIsResourceExhausted) {
  ZmqTransport context;
  auto dealer = Must(
      context.Connect(kWorker, UniqueIpcEndpoint(),
                      {.send_queue_max = 2, .linger = absl::ZeroDuration()}));
  Must(dealer->Send(Probe(1)));
  Must(dealer->Send(Probe(2)));
  EXPECT_TRUE(absl::IsResourceExhausted(dealer->Send(Probe(3))));
  EXPECT_EQ(dealer->counts().dropped, 1);
}

TEST(Bounds, TooLargeMessagesAreRefusedBeforeTheyAreSent) {
  ZmqTransport context;
  auto dealer = Must(context.Connect(kWorker, UniqueIpcEndpoint(),
                                     {.payloads_max = 2,
                                      .message_bytes_max = 1000,
                                      .linger = absl::ZeroDuration()}));
  Message many = Probe(1);
  many.payloads.resize(3);
  absl::Status status = dealer->Send(many);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("3 payloads, at most 2"));
  Message large = Probe(1);
  large.payloads.push_back(RandomPayload(1000, 1));
  status = dealer->Send(large);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("at most 1000"));
}

TEST(Bounds, ImpossibleOptionsAreRefusedByName) {
  ZmqTransport context;
  const absl::Status status = context.Listen({.receive_queue_max = 0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("receive_queue_max is 0, at least 1"));
}

class ReconnectTest : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Endpoints, ReconnectTest,
                         ::testing::Values(Via::kTcp, Via::kIpc), NameOf);

TEST_P(ReconnectTest, DealerFindsARouterThatComesBack) {
  AnyTransport context;
  std::unique_ptr<Channel> dealer;
  std::string endpoint = Endpoint();
  for (uint64_t life = 1; life <= 2; ++life) {
    // The end of the context waits for the end of the listener.
    ZmqTransport server_context;
    auto router = Must(server_context.Listen({}));
    endpoint = Must(router->Bind(endpoint));
    if (life == 1) dealer = Must(context.Connect(kWorker, endpoint, {}));
    // What is sent into a breaking connection is lost: repeat, as protocols do.
    std::optional<Message> reply;
    ASSERT_TRUE(Eventually([&] {
      Must(dealer->Send(Probe(life)));
      const auto request = ReceiveWithin(*router, absl::Milliseconds(20));
      if (!request.has_value()) return false;
      Must(router->Send(request->from, request->message));
      reply = ReceiveWithin(*dealer);
      return true;
    }));
    ASSERT_TRUE(reply.has_value());
  }
}

TEST_P(ReconnectTest, TheLatestConnectionOfAPeerCounts) {
  AnyTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind(Endpoint()));
  auto first = Must(context.Connect(kWorker, endpoint, {}));
  ExpectServes(*router, *first, 1);
  auto second = Must(context.Connect(kWorker, endpoint, {}));
  ExpectServes(*router, *second, 2);
}

TEST(ListenerTest, ServesTcpAndIpcAtTheSameTime) {
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  const std::string tcp = Must(router->Bind("tcp://127.0.0.1:0"));
  const std::string ipc = Must(router->Bind(UniqueIpcEndpoint()));
  auto over_tcp = Must(context.Connect(kWorker, tcp, {}));
  auto over_ipc =
      Must(context.Connect({PeerId::Kind::kWorker, 3, 18}, ipc, {}));
  ExpectServes(*router, *over_tcp, 1);
  ExpectServes(*router, *over_ipc, 2);
}

TEST(ListenerTest, TwoProcessesThatCallThemselvesAlikeAreTwoPeers) {
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  ZmqTransport old_process;
  auto old = Must(old_process.Connect(kWorker, endpoint, {}));
  ExpectServes(*router, *old, 1);
  auto present = Must(context.Connect(kWorker, endpoint, {}));
  ExpectServes(*router, *present, 2);
  ExpectServes(*router, *old, 3);
  ExpectServes(*router, *present, 4);
  old.reset();
  ExpectServes(*router, *present, 5);
}

TEST(ListenerTest, ForgetsWhoWasNotHeardWhileManyOthersWere) {
  ZmqTransport context;
  auto router = Must(context.Listen({.peers_max = 2}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  std::vector<std::unique_ptr<Channel>> peers;
  for (int rank = 0; rank < 5; ++rank) {
    peers.push_back(
        Must(context.Connect({PeerId::Kind::kWorker, rank, 1}, endpoint, {})));
    ExpectServes(*router, *peers.back(), static_cast<uint64_t>(rank));
  }
  const auto send = [&](int rank) {
    return router->Send({PeerId::Kind::kWorker, rank, 1}, Probe(9));
  };
  EXPECT_TRUE(absl::IsNotFound(send(0)));
  EXPECT_TRUE(send(3).ok());
  EXPECT_TRUE(send(4).ok());
  ExpectServes(*router, *peers[0], 10);
}

TEST(ListenerTest, BindToAUsedPortNamesItAndTheFix) {
  ZmqTransport context;
  auto first = Must(context.Listen({}));
  const std::string endpoint = Must(first->Bind("tcp://127.0.0.1:0"));
  auto second = Must(context.Listen({}));
  const absl::Status status = second->Bind(endpoint).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(endpoint));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("another job or program holds the port; set "
                        "coordinator { port: ... }"));
}

TEST(ListenerTest, BindToAForeignAddressOrNoEndpointSaysWhatToGive) {
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  // 192.0.2.0/24 is reserved for documentation (RFC 5737).
  EXPECT_THAT(std::string(router->Bind("tcp://192.0.2.1:0").status().message()),
              HasSubstr("not one of this host"));
  EXPECT_THAT(std::string(router->Bind("127.0.0.1:0").status().message()),
              HasSubstr("an endpoint is tcp://"));
  EXPECT_THAT(
      std::string(
          context.Connect(kWorker, "127.0.0.1:0", {}).status().message()),
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
  AnyTransport context;
  auto router = Must(context.Listen({}));
  auto dealer = Must(
      context.Connect(kWorker, Must(router->Bind("tcp://127.0.0.1:0")), {}));
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
      Must(dealer->Send(Probe(sent++)));
    }
    const absl::Time start = absl::Now();
    Must(poller.Wait(kDeadline));
    ASSERT_LT(absl::Now() - start, kDeadline) << "after " << received;
    while (const auto reply = Must(dealer->Receive())) {
      ASSERT_EQ(reply->header.probe_request().request_id(), received);
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
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  auto dealer =
      Must(context.Connect(kWorker, Must(router->Bind("inproc://router")), {}));
  Must(dealer->Send(Probe(1)));
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
  const Message message = Probe(12345);
  std::string bytes(HeaderBytes(message.header), '\0');
  SerializeHeader(message.header, bytes.data());
  wire::Header parsed;
  Must(ParseHeader(
      {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()},
      &parsed));
  EXPECT_EQ(parsed.probe_request().request_id(), 12345);
}

TEST(HostIdTest, IsTheSameEachTimeAndNamesThisBoot) {
  EXPECT_EQ(HostId(), HostId());
  EXPECT_THAT(HostId(), HasSubstr("/net:["));
  EXPECT_NE(UniqueIpcEndpoint(), UniqueIpcEndpoint());
}

// ---- What a connection tells of the process at its other end ---------------

// The next news that says something; nullopt after the deadline.
std::optional<LinkState> NewsOf(Channel& dealer) {
  Poller poller;
  poller.Add(dealer);
  const absl::Time deadline = absl::Now() + kDeadline;
  auto news = Must(dealer.ReceiveLinkState());
  // That a connection is there says nothing of who has it.
  while ((!news.has_value() || news == LinkState::kConnected) &&
         absl::Now() < deadline) {
    Must(poller.Wait(deadline - absl::Now()));
    news = Must(dealer.ReceiveLinkState());
  }
  return news;
}

TEST(LinkStateTest, AProcessThatEndsIsGoneUntilAnotherListens) {
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(context.Connect(kWorker, endpoint, {.watch_link = true}));
  EXPECT_EQ(NewsOf(*dealer), LinkState::kUp);
  ExpectServes(*router, *dealer, 1);
  router.reset();
  // It may be that the connection ends a moment before the listener does.
  ASSERT_TRUE(Eventually([&] { return NewsOf(*dealer) == LinkState::kGone; }));
  router = Must(context.Listen({}));
  ASSERT_TRUE(Eventually([&] { return router->Bind(endpoint).ok(); }));
  ASSERT_TRUE(Eventually([&] { return NewsOf(*dealer) == LinkState::kUp; }));
  ExpectServes(*router, *dealer, 2);
}

TEST(LinkStateTest, NobodyAtTheAddressIsGone) {
  ZmqTransport context;
  std::string endpoint;
  {
    ZmqTransport gone;  // Its end is the end of its listeners.
    auto router = Must(gone.Listen({}));
    endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  }
  auto dealer = Must(context.Connect(kWorker, endpoint, {.watch_link = true}));
  EXPECT_EQ(NewsOf(*dealer), LinkState::kGone);
}

// It goes on for a while, to send what it holds, and what happens meanwhile is
// told to nobody any more.
TEST(LinkStateTest, AChannelThatIsClosedHoldsUpNoOther) {
  std::string nobody;
  {
    ZmqTransport gone;
    auto router = Must(gone.Listen({}));
    nobody = Must(router->Bind("tcp://127.0.0.1:0"));
  }
  ZmqTransport context;
  auto router = Must(context.Listen({}));
  const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
  auto dealer = Must(context.Connect(kWorker, endpoint, {}));
  const ChannelOptions watched = {.watch_link = true};
  auto closed = Must(context.Connect(kWorker, nobody, watched));
  EXPECT_EQ(NewsOf(*closed), LinkState::kGone);
  Must(closed->Send(Probe(1)));
  closed.reset();
  const absl::Time end = absl::Now() + watched.linger;
  for (uint64_t i = 1; absl::Now() < end; ++i)
    ExpectServes(*router, *dealer, i);
}

// A process with a Listener that can be stopped and killed.
class RouterProcess {
 public:
  RouterProcess() {
    int ends[2];
    SL_CHECK(pipe(ends) == 0, "pipe");
    pid_ = fork();
    SL_CHECK(pid_ >= 0, "fork");
    if (pid_ == 0) {
      ZmqTransport context;
      auto router = Must(context.Listen({}));
      const std::string endpoint = Must(router->Bind("tcp://127.0.0.1:0"));
      (void)!write(ends[1], endpoint.data(), endpoint.size());
      close(ends[1]);
      Poller poller;
      poller.Add(*router);
      while (true) {
        Must(poller.Wait(absl::InfiniteDuration()));
        while (const auto request = Must(router->Receive())) {
          (void)router->Send(request->from, request->message);
        }
      }
    }
    close(ends[1]);
    char text[100];
    for (ssize_t count; (count = read(ends[0], text, sizeof(text))) > 0;)
      endpoint_.append(text, static_cast<size_t>(count));
    close(ends[0]);
  }
  ~RouterProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  const std::string& endpoint() const { return endpoint_; }

 private:
  pid_t pid_ = 0;
  std::string endpoint_;
};

TEST(LinkStateTest, AStoppedProcessIsNotGoneUntilItIsKilled) {
  const RouterProcess process;
  ASSERT_FALSE(process.endpoint().empty());
  ZmqTransport context;
  auto dealer = Must(context.Connect(
      kWorker, process.endpoint(),
      {.silence_max = absl::Milliseconds(400), .watch_link = true}));
  EXPECT_EQ(NewsOf(*dealer), LinkState::kUp);
  Must(dealer->Send(Probe(1)));
  ASSERT_TRUE(ReceiveWithin(*dealer).has_value());
  process.Signal(SIGSTOP);
  EXPECT_EQ(Must(dealer->ReceiveLinkState()), std::nullopt);
  process.Signal(SIGKILL);
  EXPECT_EQ(NewsOf(*dealer), LinkState::kGone);
}

// "ipc://@NAME" or "shm://@NAME".
bool Connects(const std::string& endpoint) {
  const int type =
      endpoint.substr(0, 3) == "ipc" ? SOCK_STREAM : SOCK_SEQPACKET;
  const std::string name = endpoint.substr(sizeof("shm://@") - 1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto size =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
  const bool connects =
      connect(socket, reinterpret_cast<sockaddr*>(&address), size) == 0;
  close(socket);
  return connects;
}

// Both Unix sockets of a shard thread, that of shared memory and that of
// ZeroMQ, know whose process wants to connect.
TEST(OtherUserTest, IsTurnedAwayAndCounted) {
  constexpr uid_t kNobody = 65534;
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user for once";
  ZmqTransport zmq;
  ShmTransport transport(zmq);
  auto listener = Must(transport.Listen({}));
  Must(listener->Bind("tcp://127.0.0.1:0"));
  const std::string shm = Must(listener->Bind(UniqueShmEndpoint()));
  const std::string ipc = Must(listener->Bind(UniqueIpcEndpoint()));
  Poller poller;
  poller.Add(*listener);
  uint64_t count = 0;
  for (const std::string& endpoint : {shm, ipc}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      _exit(setuid(kNobody) == 0 && Connects(endpoint) ? 0 : 1);
    }
    int how = -1;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    ASSERT_EQ(how, 0) << "it has not connected to " << endpoint;
    ++count;
    EXPECT_TRUE(Eventually([&] {
      Must(poller.Wait(absl::Milliseconds(20)));
      EXPECT_EQ(Must(listener->Receive()), std::nullopt);
      return listener->counts().refused.other_user() == count;
    })) << endpoint;
  }
  poller.Remove(*listener);
  const ChannelCounts counts = listener->counts();
  EXPECT_EQ(RefusedCount(counts.refused), count);
  EXPECT_THAT(counts.last_refused, HasSubstr("a process of user 65534"));
}

}  // namespace slackline::transport_test
