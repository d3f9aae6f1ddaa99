// Goal: no peer ends a process that listens, blocks others, or makes its memory
// grow, whatever it does with its connection.
// Method: real sockets; the hostile peer speaks the protocol of ZeroMQ by hand.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/net/host_id.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/process/file_limit.h"
#include "tests/net/zmtp_peer.h"
#include "tests/support/must.h"

namespace slackline::hostile_peer_test {

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kWorker = {PeerId::Kind::kWorker, 2, 17};
constexpr absl::Duration kSilence = absl::Milliseconds(400);

Message Request() {
  Message message;
  message.header.mutable_stats_request();
  return message;
}

// Echoes what comes, in a thread of its own.
class EchoServer {
 public:
  explicit EchoServer(const ChannelOptions& options)
      : listener_(Must(transport_.Listen(options))),
        endpoint_(Must(listener_->Bind("tcp://127.0.0.1:0"))) {}
  ~EchoServer() { Stop(); }

  void Start() {
    thread_ = std::thread([this] {
      Poller poller;
      poller.Add(*listener_);
      poller.Add(waker_);
      while (!stopping_) {
        EXPECT_TRUE(poller.Wait(absl::InfiniteDuration()).ok());
        waker_.Drain();
        while (const auto request = Must(listener_->Receive()))
          (void)listener_->Send(request->from, request->message);
      }
    });
  }
  void Stop() {
    stopping_ = true;
    waker_.Wake();
    if (thread_.joinable()) thread_.join();
  }
  const std::string& endpoint() const { return endpoint_; }
  // While it does not run.
  Listener& listener() { return *listener_; }

 private:
  ZmqTransport transport_;
  std::unique_ptr<Listener> listener_;
  std::string endpoint_;
  Waker waker_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

// A client that works. Its requests are answered, or the test fails.
class GoodPeer {
 public:
  explicit GoodPeer(const std::string& endpoint)
      : channel_(Must(transport_.Connect(kWorker, endpoint, {}))) {
    poller_.Add(*channel_);
  }
  void ExpectServed() {
    ASSERT_TRUE(channel_->Send(Request()).ok());
    const absl::Time deadline = absl::Now() + kDeadline;
    while (!Must(channel_->Receive()).has_value()) {
      ASSERT_LT(absl::Now(), deadline);
      ASSERT_TRUE(poller_.Wait(deadline - absl::Now()).ok());
    }
  }
  void ExpectServedFor(absl::Duration time) {
    for (const absl::Time end = absl::Now() + time;
         absl::Now() < end && !::testing::Test::HasFailure();) {
      ExpectServed();
    }
  }

 private:
  ZmqTransport transport_;
  std::unique_ptr<Channel> channel_;
  Poller poller_;
};

// Frames whose message never ends. ZeroMQ hands on whole messages only, so the
// listener's thread does not see them.
class EndlessMessage : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(FrameBytes, EndlessMessage,
                         ::testing::Values(0, 1000, 60000));

TEST_P(EndlessMessage, EndsItsOwnConnection) {
  // More than can be sent between two looks at the connection.
  constexpr int64_t kBytesMax = int64_t{4} << 30;
  EchoServer server({.unread_bytes_max = 1 << 20});
  server.Start();
  GoodPeer good(server.endpoint());
  good.ExpectServed();
  ZmtpPeer endless(server.endpoint(), "worker.0.1#a");
  // Frames of a megabyte of the wire at a time.
  std::string frames;
  const std::string body(static_cast<size_t>(GetParam()), 'x');
  while (frames.size() < 1 << 20) {
    frames +=
        body.size() > 255
            ? absl::StrCat("\x03", std::string(4, '\0'), std::string(1, '\0'),
                           std::string(1, static_cast<char>(0)),
                           std::string(1, static_cast<char>(body.size() >> 8)),
                           std::string(1, static_cast<char>(body.size() & 255)),
                           body)
            : absl::StrCat(
                  "\x01", std::string(1, static_cast<char>(body.size())), body);
  }
  int64_t sent = 0;
  while (sent < kBytesMax && endless.SendRaw(frames))
    sent += static_cast<int64_t>(frames.size());
  EXPECT_LT(sent, kBytesMax);
  good.ExpectServed();
}

TEST(SharedRoutingId, TheOlderConnectionSendsAndCloses) {
  EchoServer server({.silence_max = kSilence});
  server.Start();
  GoodPeer good(server.endpoint());
  good.ExpectServed();
  const std::string frame = Request().header.SerializeAsString();
  ZmtpPeer older(server.endpoint(), "worker.0.1#same");
  ASSERT_TRUE(older.SendFrame(frame, false));
  EXPECT_FALSE(older.ReceiveMessage().empty());
  ZmtpPeer newer(server.endpoint(), "worker.0.1#same");
  ASSERT_TRUE(newer.SendFrame(frame, false));
  EXPECT_FALSE(newer.ReceiveMessage().empty());
  ASSERT_TRUE(older.SendFrame(frame, false));
  good.ExpectServed();
  older.Reset();
  good.ExpectServedFor(2 * kSilence);
  ASSERT_TRUE(newer.SendFrame(frame, false));
  EXPECT_FALSE(newer.ReceiveMessage().empty());
}

// Much waits to be read, a PING among it, and the peer is killed: what happens
// to a busy server whose worker dies.
TEST(FullQueue, WhoseSenderDiesWhileNobodyReads) {
  EchoServer server({.receive_queue_max = 2, .silence_max = kSilence});
  const std::string frame = Request().header.SerializeAsString();
  ZmtpPeer peer(server.endpoint(), "worker.0.1#a");
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(peer.SendFrame(frame, false));
    ASSERT_TRUE(peer.SendPing());
  }
  Poller poller;
  poller.Add(server.listener());
  ASSERT_TRUE(poller.Wait(kDeadline).ok());  // Something has come.
  poller.Remove(server.listener());
  absl::SleepFor(kSilence / 4);  // The rest comes.
  peer.Reset();
  absl::SleepFor(2 * kSilence);  // Nobody reads: that is what is tested.
  server.Start();
  GoodPeer good(server.endpoint());
  good.ExpectServed();
}

// ZeroMQ numbers peers without a routing id, and checks that nobody has taken
// the next number. So nobody may learn a number.
TEST(UnnamedPeer, IsNotToldItsNumber) {
  EchoServer server({});
  server.Start();
  ZmtpPeer unnamed(server.endpoint(), "");
  ASSERT_TRUE(unnamed.SendFrame(Request().header.SerializeAsString(), false));
  wire::Header reply;
  ASSERT_TRUE(reply.ParseFromString(unnamed.ReceiveMessage()));
  ASSERT_TRUE(reply.has_error_reply());
  EXPECT_EQ(reply.error_reply().error().find("\\000"), std::string::npos)
      << reply.error_reply().error();
}

// As many as one server may have shard threads and workers.
TEST(ManyPeers, AreAllServed) {
  constexpr int kPeers = 1500;
  ASSERT_TRUE(RaiseFileLimit().ok());
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_cur < 8 * kPeers)
    GTEST_SKIP() << "at most " << files.rlim_cur << " files may be open";
  EchoServer server({});
  server.Start();
  ZmqTransport transport;
  Poller poller;
  std::vector<std::unique_ptr<Channel>> peers;
  for (int rank = 0; rank < kPeers; ++rank) {
    peers.push_back(Must(transport.Connect({PeerId::Kind::kWorker, rank, 1},
                                           server.endpoint(), {})));
    poller.Add(*peers.back());
    ASSERT_TRUE(peers.back()->Send(Request()).ok());
  }
  const absl::Time deadline = absl::Now() + kDeadline;
  for (const auto& peer : peers) {
    while (!Must(peer->Receive()).has_value()) {
      ASSERT_LT(absl::Now(), deadline);
      ASSERT_TRUE(poller.Wait(deadline - absl::Now()).ok());
    }
    poller.Remove(*peer);
  }
}

}  // namespace slackline::hostile_peer_test
