// Listeners and channels of a job with keys, over real sockets: who is let in,
// as whom, and what he may say there.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/host_port.h"
#include "common/io/descriptor.h"
#include "common/keys/credentials.h"
#include "common/keys/live_keys.h"
#include "common/metrics/refusals.h"
#include "common/net/link_trial.h"
#include "common/net/poller.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "tests/support/must.h"

namespace slackline::keyed_transport_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr absl::Duration kDeadline = absl::Seconds(30);
// In which what must not come would have come.
constexpr absl::Duration kMoment = absl::Milliseconds(300);
constexpr PeerId kWorker = {PeerId::Kind::kWorker, 2, 17};
constexpr PeerId kOtherWorker = {PeerId::Kind::kWorker, 3, 17};
constexpr PeerId kObserver = {PeerId::Kind::kObserver, 0, 5};
constexpr PeerId kOtherServer = {PeerId::Kind::kShardThread, 1, 0};
const ChannelOptions kWatched = {.linger = absl::ZeroDuration(),
                                 .watch_link = true};

Secret SecretOfJob(const std::string& job) {
  return JobSecret(Secret(Secret::Bytes{7}), job);
}

ZmqTransport::Options Holding(const std::optional<Credentials>& credentials) {
  ZmqTransport::Options options;
  if (credentials.has_value())
    options.keys = std::make_shared<LiveKeys>(*credentials);
  return options;
}

// Of the job, by its config.
constexpr int kWorkers = 4;

// What processes of the job "digits" hold.
ZmqTransport::Options As(const KeyHolder& holder) {
  return Holding(CredentialsOf(SecretOfJob("digits"), holder, kWorkers));
}
const KeyHolder kWorkerTwo(Role::kWorker, Rank{2});

Message Probe(uint64_t id) {
  Message message;
  message.header.mutable_probe_request()->set_request_id(id);
  return message;
}

// The next message of the channel; nullopt after the deadline.
std::optional<Message> AnswerOf(Channel& channel) {
  Poller poller;
  poller.Add(channel);
  auto answer = Must(channel.Receive());
  for (const absl::Time end = absl::Now() + kDeadline;
       !answer.has_value() && absl::Now() < end;
       answer = Must(channel.Receive())) {
    Must(poller.Wait(kMoment));
  }
  poller.Remove(channel);
  return answer;
}

// A listener of the job, and what comes of it.
class KeyedTransportTest : public ::testing::Test {
 protected:
  explicit KeyedTransportTest(const ChannelOptions& options = {})
      : transport_(As(Role::kServer)),
        listener_(Must(transport_.Listen(options))),
        endpoint_(Must(listener_->Bind("tcp://127.0.0.1:0"))) {
    poller_.Add(*listener_);
  }
  ~KeyedTransportTest() override { poller_.Remove(*listener_); }

  std::optional<Listener::Incoming> Receive(absl::Duration wait_max) {
    const absl::Time deadline = absl::Now() + wait_max;
    auto received = Must(listener_->Receive());
    while (!received.has_value() && absl::Now() < deadline) {
      Must(poller_.Wait(deadline - absl::Now()));
      received = Must(listener_->Receive());
    }
    return received;
  }

  // Until it has refused something since the last call, or has seen a
  // connection without a key. Its text.
  std::string AwaitRefusal() {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (Refused() <= refused_ && absl::Now() < deadline) {
      Must(poller_.Wait(absl::Milliseconds(20)));
      const auto received = Must(listener_->Receive());
      EXPECT_FALSE(received.has_value())
          << received->message.header.ShortDebugString();
    }
    EXPECT_GT(Refused(), refused_);
    refused_ = Refused();
    const ChannelCounts counts = listener_->counts();
    return RefusedCount(counts.refused) > 0 ? counts.last_refused
                                            : counts.last_silent + ": no key";
  }

  uint64_t Refused() const {
    const ChannelCounts counts = listener_->counts();
    return RefusedCount(counts.refused) + counts.refused.silent();
  }

  // Right after anything else: the job goes on.
  void ExpectServes() {
    ZmqTransport worker(As(Role::kWorker));
    auto channel = Must(worker.Connect(kWorker, endpoint_, {}));
    Must(channel->Send(Probe(++probe_)));
    const auto request = Receive(kDeadline);
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->message.header.probe_request().request_id(), probe_);
    Message reply;
    reply.header.mutable_probe_reply()->set_request_id(probe_);
    Must(listener_->Send(request->from, reply));
    const std::optional<Message> answer = AnswerOf(*channel);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->header.probe_reply().request_id(), probe_);
  }

  int Port() const {
    int port = 0;
    SL_CHECK(absl::SimpleAtoi(SplitHostPort(endpoint_).second, &port), "port");
    return port;
  }

  ZmqTransport transport_;
  std::unique_ptr<Listener> listener_;
  const std::string endpoint_;
  Poller poller_;
  uint64_t refused_ = 0;
  uint64_t probe_ = 0;
};

// The next news of the channel's link that says who is there.
std::optional<LinkState> NewsOf(Channel& channel) {
  Poller poller;
  poller.Add(channel);
  const absl::Time deadline = absl::Now() + kDeadline;
  auto news = Must(channel.ReceiveLinkState());
  while ((!news.has_value() || news == LinkState::kConnected) &&
         absl::Now() < deadline) {
    Must(poller.Wait(deadline - absl::Now()));
    news = Must(channel.ReceiveLinkState());
  }
  poller.Remove(channel);
  return news;
}

TEST_F(KeyedTransportTest, WhoHasTheKeyIsServed) {
  ExpectServes();
  EXPECT_EQ(RefusedCount(listener_->counts().refused), 0u);
  EXPECT_EQ(listener_->counts().malformed, 0);
}

TEST_F(KeyedTransportTest, LargePayloadsArriveAsTheyWere) {
  ZmqTransport worker(As(Role::kWorker));
  auto channel = Must(worker.Connect(kWorker, endpoint_, {}));
  Message message = Probe(1);
  for (const size_t size : {1u, 4096u, 1u << 20, 16u << 20}) {
    message.payloads = {Payload::Allocate(size)};
    std::byte* const bytes = message.payloads[0].MutableData();
    for (size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>(i * 31 + size);
    Must(channel->Send(message));
    const auto received = Receive(kDeadline);
    ASSERT_TRUE(received.has_value()) << size;
    ASSERT_EQ(received->message.payloads.size(), 1u);
    ASSERT_EQ(received->message.payloads[0].size(), size);
    EXPECT_EQ(memcmp(received->message.payloads[0].data(), bytes, size), 0);
  }
}

TEST_F(KeyedTransportTest, ThreadsOfTheProcessNeedNoKey) {
  Must(listener_->Bind("inproc://control"));
  auto channel = Must(transport_.Connect({PeerId::Kind::kShardThread, 0, 1},
                                         "inproc://control", {}));
  Message message;
  message.header.mutable_stats_reply();
  Must(channel->Send(message));
  const auto received = Receive(kDeadline);
  ASSERT_TRUE(received.has_value());
  EXPECT_TRUE(received->message.header.has_stats_reply());
}

struct Stranger {
  const char* name;
  std::function<std::optional<Credentials>()> credentials;
  const char* why;  // As the listener says it.
  LinkState link;   // As he sees it.
  std::function<uint64_t(const run::Refusals&)> counted;  // And no other.
};
class StrangerTest : public KeyedTransportTest,
                     public ::testing::WithParamInterface<Stranger> {};

// He is not heard, his channel says so, and the others go on.
TEST_P(StrangerTest, IsRefused) {
  {
    ZmqTransport stranger(Holding(GetParam().credentials()));
    auto channel = Must(stranger.Connect(kWorker, endpoint_, kWatched));
    Must(channel->Send(Probe(99)));
    const std::string why = AwaitRefusal();
    EXPECT_THAT(why, HasSubstr(GetParam().why));
    // Who ends the connection himself may be gone before anybody looks.
    EXPECT_THAT(why, AnyOf(HasSubstr("127.0.0.1"), HasSubstr("is not known")));
    // Who has no key may see the other end it before he sees why.
    EXPECT_THAT(NewsOf(*channel), AnyOf(Optional(GetParam().link),
                                        Optional(LinkState::kDropped)));
    EXPECT_FALSE(Receive(kMoment).has_value());
  }
  EXPECT_EQ(listener_->counts().malformed, 0);
  const run::Refusals refused = listener_->counts().refused;
  EXPECT_GT(GetParam().counted(refused), 0u) << refused.ShortDebugString();
  EXPECT_EQ(GetParam().counted(refused),
            RefusedCount(refused) + refused.silent())
      << refused.ShortDebugString();
  // Attempts that it made before it ended may still be counted.
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(
    All, StrangerTest,
    ::testing::Values(
        Stranger{"NoKey", [] { return std::nullopt; }, "no key",
                 LinkState::kRefused,
                 [](const run::Refusals& refused) {
                   return refused.no_key() + refused.silent();
                 }},
        // Nor does he know whom to speak to.
        Stranger{
            "KeyOfAnotherJob",
            [] { return CredentialsOf(SecretOfJob("letters"), Role::kWorker); },
            "the key of another job", LinkState::kDropped,
            [](const run::Refusals& refused) { return refused.other_key(); }},
        // A key of his own, and the server's public one, which is no secret.
        Stranger{
            "KeyOfHisOwn",
            [] {
              Credentials own =
                  CredentialsOf(SecretOfJob("digits"), Role::kWorker);
              own.own = Secret(Secret::Bytes{1, 2, 3});
              return own;
            },
            "a key of its own", LinkState::kRefused,
            [](const run::Refusals& refused) { return refused.other_key(); }}),
    [](const auto& tested) { return tested.param.name; });

// A process at the address of the servers that cannot prove to be one: nothing
// is sent to it.
TEST(ForeignServerTest, IsToldNothing) {
  for (const bool has_key : {false, true}) {
    SCOPED_TRACE(has_key);
    ZmqTransport foreign(
        has_key ? Holding(CredentialsOf(SecretOfJob("letters"), Role::kServer))
                : ZmqTransport::Options{});
    auto listener = Must(foreign.Listen({}));
    const std::string endpoint = Must(listener->Bind("tcp://127.0.0.1:0"));
    ZmqTransport worker(As(Role::kWorker));
    auto channel = Must(worker.Connect(kWorker, endpoint, kWatched));
    Must(channel->Send(Probe(1)));
    EXPECT_THAT(NewsOf(*channel), AnyOf(Optional(LinkState::kDropped),
                                        Optional(LinkState::kRefused)));
    Poller poller;
    poller.Add(*listener);
    const absl::Time deadline = absl::Now() + kDeadline;
    const auto told = [&] {
      const ChannelCounts counts = listener->counts();
      return RefusedCount(counts.refused) + counts.refused.silent();
    };
    while (told() == 0 && absl::Now() < deadline) {
      Must(poller.Wait(absl::Milliseconds(20)));
      EXPECT_FALSE(Must(listener->Receive()).has_value());
    }
    poller.Remove(*listener);
    EXPECT_GT(told(), 0u);
  }
}

// A server and workers whose keys are exchanged, for those of "letters".
class ExchangeTest : public ::testing::Test {
 protected:
  static constexpr absl::Time kFrom = absl::FromUnixSeconds(1'800'000'000);

  static std::shared_ptr<LiveKeys> Keys(const KeyHolder& holder) {
    return std::make_shared<LiveKeys>(
        KeyPlan{.first = CredentialsOf(SecretOfJob("digits"), holder, kWorkers),
                .next = CredentialsOf(SecretOfJob("letters"), holder, kWorkers),
                .next_from = kFrom},
        kFrom - absl::Seconds(1));
  }
  static ZmqTransport::Options With(std::shared_ptr<LiveKeys> keys) {
    ZmqTransport::Options options;
    options.keys = std::move(keys);
    return options;
  }

  ExchangeTest()
      : transport_(With(server_)),
        listener_(Must(transport_.Listen({}))),
        tcp_(Must(listener_->Bind("tcp://127.0.0.1:0"))),
        ipc_(Must(listener_->Bind(
            absl::StrCat("ipc://@exchange-", getpid(), "-", tcp_)))),
        within_(Must(listener_->Bind("inproc://exchange"))) {
    poller_.Add(*listener_);
  }
  ~ExchangeTest() override { poller_.Remove(*listener_); }

  // Whether the listener answers within the time, sooner or later: what is lost
  // on the way is sent again.
  bool IsServed(Channel& channel, absl::Duration wait_max) {
    const absl::Time deadline = absl::Now() + wait_max;
    poller_.Add(channel);
    bool served = false;
    const uint64_t id = ++probe_;
    absl::Time send_at = absl::InfinitePast();
    while (!served && absl::Now() < deadline) {
      if (absl::Now() >= send_at) {
        Must(channel.Send(Probe(id)));
        send_at = absl::Now() + absl::Milliseconds(100);
      }
      Must(poller_.Wait(absl::Milliseconds(20)));
      while (const auto received = Must(listener_->Receive())) {
        Message reply;
        reply.header.mutable_probe_reply()->set_request_id(
            received->message.header.probe_request().request_id());
        // Who has gone over to new keys meanwhile asks again.
        listener_->Send(received->from, reply).IgnoreError();
      }
      while (const auto answer = Must(channel.Receive())) {
        EXPECT_FALSE(answer->header.has_error_reply())
            << answer->header.ShortDebugString();
        served |= answer->header.probe_reply().request_id() == id;
      }
    }
    poller_.Remove(channel);
    return served;
  }

  const std::shared_ptr<LiveKeys> server_ = Keys(Role::kServer);
  ZmqTransport transport_;
  std::unique_ptr<Listener> listener_;
  const std::string tcp_;
  const std::string ipc_;
  const std::string within_;
  Poller poller_;
  uint64_t probe_ = 0;
};

TEST_F(ExchangeTest, ConnectionsGoOnWithTheNewKeysAndTheOldOnesOpenNothing) {
  const std::shared_ptr<LiveKeys> follows = Keys(Role::kWorker);
  ZmqTransport worker(With(follows));
  ZmqTransport late(As(Role::kWorker));
  std::vector<std::unique_ptr<Channel>> channels;
  for (const std::string& endpoint : {tcp_, ipc_})
    channels.push_back(Must(worker.Connect(kWorker, endpoint, {})));
  auto late_channel =
      Must(late.Connect({PeerId::Kind::kWorker, 3, 4}, tcp_, {}));
  auto thread =
      Must(transport_.Connect({PeerId::Kind::kShardThread, 0, 1}, within_, {}));
  for (const auto& channel : channels)
    EXPECT_TRUE(IsServed(*channel, kDeadline));
  EXPECT_TRUE(IsServed(*late_channel, kDeadline));
  EXPECT_TRUE(IsServed(*thread, kDeadline));

  // Servers first, then workers, as clocks differ.
  EXPECT_TRUE(server_->Advance(kFrom));
  for (const auto& channel : channels)
    EXPECT_FALSE(IsServed(*channel, kMoment));
  EXPECT_TRUE(follows->Advance(kFrom));
  for (const auto& channel : channels)
    EXPECT_TRUE(IsServed(*channel, kDeadline));
  // It has no key, and can be spoken to without having said anything since.
  Must(listener_->Send({PeerId::Kind::kShardThread, 0, 1}, Probe(1)));
  EXPECT_TRUE(IsServed(*thread, kDeadline));

  // Neither the connection that there is, nor a new one.
  EXPECT_FALSE(IsServed(*late_channel, kMoment));
  auto another = Must(late.Connect({PeerId::Kind::kWorker, 5, 6}, tcp_, {}));
  EXPECT_FALSE(IsServed(*another, kMoment));
  EXPECT_GT(RefusedCount(listener_->counts().refused), 0u);
  EXPECT_EQ(listener_->counts().malformed, 0);

  ZmqTransport begins(
      Holding(CredentialsOf(SecretOfJob("letters"), Role::kWorker)));
  auto channel = Must(begins.Connect({PeerId::Kind::kWorker, 7, 8}, tcp_, {}));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
}

// Also of workers with keys of their own, which are made of the new one then.
TEST_F(ExchangeTest, KeysOfSingleWorkersAreExchangedWithTheJobs) {
  const std::shared_ptr<LiveKeys> follows = Keys(kWorkerTwo);
  ZmqTransport worker(With(follows));
  auto channel = Must(worker.Connect(kWorker, tcp_, {}));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
  EXPECT_TRUE(server_->Advance(kFrom));
  EXPECT_TRUE(follows->Advance(kFrom));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
  ZmqTransport late(As(kWorkerTwo));
  auto another = Must(late.Connect(kWorker, tcp_, {}));
  EXPECT_FALSE(IsServed(*another, kMoment));
}

TEST_F(ExchangeTest, AWorkerThatIsFirstIsServedWhenTheServersFollow) {
  const std::shared_ptr<LiveKeys> follows = Keys(Role::kWorker);
  ZmqTransport worker(With(follows));
  auto channel = Must(worker.Connect(kWorker, tcp_, {}));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
  EXPECT_TRUE(follows->Advance(kFrom));
  EXPECT_FALSE(IsServed(*channel, kMoment));
  EXPECT_TRUE(server_->Advance(kFrom));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
}

// What others try while a job forms, which may last longer than a key counts.
TEST_F(ExchangeTest, TheDoorOfAWorkerFollowsUntilTheTrialEnds) {
  const std::shared_ptr<LiveKeys> follows = Keys(kWorkerTwo);
  ZmqTransport worker(With(follows));
  auto door = Must(worker.Listen({}));
  const std::string endpoint = Must(door->Bind("tcp://127.0.0.1:0"));
  Poller poller;
  LinkTrial trial(worker, poller, config::Limits::AUTO, kObserver);
  trial.Open(std::move(door));
  EXPECT_TRUE(follows->Advance(kFrom));
  ZmqTransport other(
      Holding(CredentialsOf(SecretOfJob("letters"), Role::kWorker)));
  ChannelOptions options = kWatched;
  options.listener = Role::kWorker;
  const auto reaches = [&](absl::Duration wait_max) {
    auto channel = Must(other.Connect(kObserver, endpoint, options));
    const absl::Time end = absl::Now() + wait_max;
    bool up = false;
    while (!up && absl::Now() < end) {
      Must(poller.Wait(absl::Milliseconds(5)));
      EXPECT_FALSE(trial.Look().has_value());
      up = Must(channel->ReceiveLinkState()) == LinkState::kUp;
    }
    return up;
  };
  EXPECT_TRUE(reaches(kDeadline));
  // ZeroMQ stops to accept a moment after its socket is closed.
  trial.End();
  bool up = true;
  for (const absl::Time end = absl::Now() + kDeadline; up && absl::Now() < end;)
    up = reaches(kMoment);
  EXPECT_FALSE(up);
}

// What nobody reads would end the connection here, and take memory otherwise.
TEST_F(KeyedTransportTest, WhatComesToTheDoorOfAWorkerIsRead) {
  ZmqTransport worker(As(kWorkerTwo));
  constexpr int64_t kUnreadMax = 256 << 10;
  auto door = Must(worker.Listen({.unread_bytes_max = kUnreadMax}));
  const std::string endpoint = Must(door->Bind("tcp://127.0.0.1:0"));
  Poller poller;
  LinkTrial trial(worker, poller, config::Limits::AUTO, kObserver);
  trial.Open(std::move(door));
  ZmqTransport other(As(Role::kWorker));
  ChannelOptions options = kWatched;
  options.listener = Role::kWorker;
  auto channel = Must(other.Connect(kObserver, endpoint, options));
  Message message = Probe(1);
  message.payloads = {Payload::Allocate(kUnreadMax / 8)};
  bool up = false;
  absl::Time end = absl::Now() + kDeadline;
  while (absl::Now() < end) {
    Must(poller.Wait(absl::Milliseconds(1)));
    EXPECT_FALSE(trial.Look().has_value());
    const auto news = Must(channel->ReceiveLinkState());
    ASSERT_TRUE(!up || !news.has_value()) << "the connection was ended";
    if (news == LinkState::kUp) {
      up = true;
      end = absl::Now() + absl::Seconds(1);
    }
    if (up) Must(channel->Send(message));
  }
  EXPECT_TRUE(up);
}

// As programs do that look at their channels now and then.
TEST_F(ExchangeTest, WhoDoesNotWaitFollowsToo) {
  const std::shared_ptr<LiveKeys> follows = Keys(Role::kWorker);
  ZmqTransport worker(With(follows));
  auto channel = Must(worker.Connect(kWorker, tcp_, {}));
  for (const std::shared_ptr<LiveKeys>& keys : {server_, follows}) {
    EXPECT_TRUE(keys->Advance(kFrom));
    Must(channel->Receive());
    Must(listener_->Receive());
  }
  bool heard = false;
  for (const absl::Time end = absl::Now() + kDeadline;
       !heard && absl::Now() < end; absl::SleepFor(absl::Milliseconds(20))) {
    Must(channel->Send(Probe(1)));
    heard = Must(listener_->Receive()).has_value();
  }
  EXPECT_TRUE(heard);
}

// Who has been heard with an old key is not spoken to any more.
TEST_F(ExchangeTest, NothingIsSentToWhoHasShownAnOldKey) {
  ZmqTransport late(As(Role::kWorker));
  auto channel = Must(late.Connect(kWorker, tcp_, {}));
  EXPECT_TRUE(IsServed(*channel, kDeadline));
  EXPECT_TRUE(server_->Advance(kFrom));
  Must(poller_.Wait(absl::ZeroDuration()));
  EXPECT_TRUE(absl::IsNotFound(listener_->Send(kWorker, Probe(1))));
}

// A worker's door is known by the workers' key, and takes no servers for it,
// whether a worker has a key of its own or not.
TEST(WorkerDoorTest, IsKnownByTheWorkersKey) {
  ZmqTransport worker(As(kWorkerTwo));
  auto door = Must(worker.Listen({}));
  const std::string endpoint = Must(door->Bind("tcp://127.0.0.1:0"));
  for (const KeyHolder& from :
       {KeyHolder(Role::kWorker), KeyHolder(kWorkerTwo),
        KeyHolder(Role::kWorker, Rank{3}), KeyHolder(Role::kServer)}) {
    ZmqTransport other(As(from));
    ChannelOptions options = kWatched;
    options.listener = Role::kWorker;
    auto channel = Must(other.Connect(kObserver, endpoint, options));
    EXPECT_EQ(NewsOf(*channel), LinkState::kUp);
    auto mistaken = Must(other.Connect(kObserver, endpoint, kWatched));
    EXPECT_EQ(NewsOf(*mistaken), LinkState::kDropped);
  }
}

// What workers share opens nothing at a server.
TEST_F(KeyedTransportTest, TheKeyOfWorkersDoorsIsNoneOfAWorker) {
  Credentials own = CredentialsOf(SecretOfJob("digits"), Role::kWorker);
  own.own = *own.door;
  ZmqTransport worker(Holding(own));
  auto channel = Must(worker.Connect(kWorker, endpoint_, kWatched));
  EXPECT_THAT(AwaitRefusal(), HasSubstr("none of this job"));
  ExpectServes();
}

// Each worker of the config has a key of its own, and no others do.
TEST_F(KeyedTransportTest, WorkersOfTheConfigAreHeardWithKeysOfTheirOwn) {
  for (int rank = kWorkers - 1; rank >= 0; --rank) {
    ZmqTransport worker(As({Role::kWorker, Rank{rank}}));
    for (const PeerId::Kind kind :
         {PeerId::Kind::kWorker, PeerId::Kind::kSum}) {
      auto channel = Must(worker.Connect({kind, rank, 17}, endpoint_, {}));
      Must(channel->Send(Probe(1)));
      const auto received = Receive(kDeadline);
      ASSERT_TRUE(received.has_value()) << rank;
      EXPECT_EQ(received->from, (PeerId{kind, rank, 17}));
    }
  }
  EXPECT_EQ(Refused(), 0u);
  ZmqTransport other(As({Role::kWorker, Rank{kWorkers}}));
  auto channel =
      Must(other.Connect({PeerId::Kind::kWorker, kWorkers, 17}, endpoint_, {}));
  EXPECT_THAT(AwaitRefusal(), HasSubstr("none of this job"));
  ExpectServes();
}

struct Overreach {
  const char* name;
  KeyHolder holder;
  PeerId self;
  std::function<void(wire::Header*)> says;
  const char* why;
};
class OverreachTest : public KeyedTransportTest,
                      public ::testing::WithParamInterface<Overreach> {
 protected:
  void ExpectRefused(bool looked_ahead);
};

// Who has a key, and wants more than it allows.
TEST_P(OverreachTest, IsRefused) { ExpectRefused(/*looked_ahead=*/false); }

// Also if the listener was asked whether there is something when the message
// was there: libzmq then has other paths, and knows less of the sender.
TEST_P(OverreachTest, IsRefusedWhenItIsSeenAhead) {
  ExpectRefused(/*looked_ahead=*/true);
}

void OverreachTest::ExpectRefused(bool looked_ahead) {
  {
    ZmqTransport peer(As(GetParam().holder));
    auto channel = Must(peer.Connect(GetParam().self, endpoint_, kWatched));
    Message message;
    GetParam().says(&message.header);
    Must(channel->Send(message));
    if (looked_ahead) {
      const absl::Time deadline = absl::Now() + kDeadline;
      while (Must(listener_->WaitMax()) > absl::ZeroDuration()) {
        ASSERT_LT(absl::Now(), deadline);
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    const std::string why = AwaitRefusal();
    EXPECT_THAT(why, HasSubstr(GetParam().why));
    EXPECT_THAT(why, HasSubstr(GetParam().self.ToString()));
    const std::optional<Message> answer = AnswerOf(*channel);
    ASSERT_TRUE(answer.has_value());
    EXPECT_THAT(answer->header.error_reply().error(),
                HasSubstr(GetParam().why));
    // Answers go to peers that were heard, and this one was not.
    EXPECT_TRUE(absl::IsNotFound(listener_->Send(GetParam().self, Probe(1))));
    EXPECT_EQ(listener_->counts().refused.not_allowed(), 1u);
  }
  ExpectServes();
}

INSTANTIATE_TEST_SUITE_P(
    All, OverreachTest,
    ::testing::Values(
        Overreach{"WorkerSendsAView", Role::kWorker, kWorker,
                  [](wire::Header* header) { header->mutable_view(); },
                  "may not send 'view'"},
        Overreach{"WorkerHandsOver", Role::kWorker, kWorker,
                  [](wire::Header* header) { header->mutable_hand_over(); },
                  "may not send 'hand_over'"},
        Overreach{"WorkerStopsAsAUser", Role::kWorker, kObserver,
                  [](wire::Header* header) {
                    header->mutable_call()->mutable_stop();
                  },
                  "may not call 'stop'"},
        Overreach{"WorkerDrains", Role::kWorker, kWorker,
                  [](wire::Header* header) {
                    header->mutable_call()->mutable_drain();
                  },
                  "may not call 'drain'"},
        Overreach{"WorkerJoinsAsServer", Role::kWorker, kWorker,
                  [](wire::Header* header) {
                    header->mutable_join_request()->set_role(
                        wire::JoinRequest::SERVER);
                  },
                  "may not send 'join_request'"},
        Overreach{"WorkerCallsItselfServer", Role::kWorker, kOtherServer,
                  [](wire::Header* header) { header->mutable_hand_over(); },
                  "may not be"},
        Overreach{"WorkerCallsItselfAnother", kWorkerTwo, kOtherWorker,
                  [](wire::Header* header) { header->mutable_push_request(); },
                  "who has the key of worker 2 may not be worker.3.17"},
        Overreach{"WorkerSumsAsAnother",
                  kWorkerTwo,
                  {PeerId::Kind::kSum, 3, 17},
                  [](wire::Header* header) { header->mutable_sum_request(); },
                  "may not be"},
        Overreach{"WorkerLooksAsAnother",
                  kWorkerTwo,
                  {PeerId::Kind::kObserver, 3, 5},
                  [](wire::Header* header) {
                    header->mutable_call()->mutable_gather()->set_rank(2);
                  },
                  "may not be"},
        Overreach{"WorkerJoinsAsAnother", kWorkerTwo, kWorker,
                  [](wire::Header* header) {
                    header->mutable_join_request()->set_role(
                        wire::JoinRequest::WORKER);
                    header->mutable_join_request()->set_index(3);
                  },
                  "may not speak for worker 3"},
        Overreach{"WorkerGathersAsAnother", kWorkerTwo, kWorker,
                  [](wire::Header* header) {
                    header->mutable_call()->mutable_gather()->set_rank(3);
                  },
                  "may not speak for worker 3"},
        Overreach{"WorkerSaysThatAnotherCannotJoin", kWorkerTwo, kWorker,
                  [](wire::Header* header) {
                    wire::CannotJoin& cannot =
                        *header->mutable_call()->mutable_cannot_join();
                    cannot.set_role(wire::JoinRequest::WORKER);
                    cannot.set_index(3);
                  },
                  "may not speak for worker 3"},
        Overreach{"ReaderPushes", Role::kReader, kObserver,
                  [](wire::Header* header) { header->mutable_push_request(); },
                  "may not send 'push_request'"},
        Overreach{"ReaderCallsItselfWorker", Role::kReader, kWorker,
                  [](wire::Header* header) { header->mutable_push_request(); },
                  "may not be"},
        Overreach{"ReaderStops", Role::kReader, kObserver,
                  [](wire::Header* header) {
                    header->mutable_call()->mutable_stop();
                  },
                  "may not call 'stop'"},
        Overreach{"OperatorPushes", Role::kOperator, kObserver,
                  [](wire::Header* header) { header->mutable_push_request(); },
                  "may not send 'push_request'"},
        Overreach{"OperatorJoins", Role::kOperator, kObserver,
                  [](wire::Header* header) {
                    header->mutable_join_request()->set_role(
                        wire::JoinRequest::WORKER);
                  },
                  "may not send 'join_request'"},
        Overreach{"ServerPushes", Role::kServer, kOtherServer,
                  [](wire::Header* header) { header->mutable_push_request(); },
                  "may not send 'push_request'"},
        Overreach{"ServerSendsStatistics", Role::kServer, kOtherServer,
                  [](wire::Header* header) { header->mutable_stats_request(); },
                  "may not send 'stats_request'"}),
    [](const auto& tested) { return tested.param.name; });

// ---- A man in the middle
// ----------------------------------------

Descriptor ConnectTo(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  SL_CHECK(connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                   sizeof(address)) == 0,
           "connect");
  return socket;
}

// Stands between one channel and a listener, and keeps what goes to the
// listener; may change a byte of it, or leave messages' frames out.
class Proxy {
 public:
  explicit Proxy(int to_port, std::optional<size_t> changes = std::nullopt,
                 std::vector<size_t> leaves_out = {})
      : to_port_(to_port),
        changes_(changes),
        leaves_out_(std::move(leaves_out)),
        listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    SL_CHECK(bind(listener_.get(), any, size) == 0 &&
                 listen(listener_.get(), 8) == 0 &&
                 getsockname(listener_.get(), any, &size) == 0 &&
                 pipe(ends_) == 0,
             "proxy");
    endpoint_ = absl::StrCat("tcp://127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread(&Proxy::Run, this);
  }
  ~Proxy() { End(); }

  const std::string& endpoint() const { return endpoint_; }
  // What its first connection has sent to the listener.
  std::string End() {
    if (thread_.joinable()) {
      (void)!write(ends_[1], "x", 1);
      thread_.join();
      close(ends_[0]);
      close(ends_[1]);
    }
    return recorded_;
  }

 private:
  void Run() {
    Descriptor client(accept(listener_.get(), nullptr, nullptr));
    const Descriptor server = ConnectTo(to_port_);
    char bytes[65536];
    while (true) {
      pollfd files[] = {{client.get(), POLLIN, 0},
                        {server.get(), POLLIN, 0},
                        {ends_[0], POLLIN, 0}};
      poll(files, 3, -1);
      if (files[2].revents != 0) return;
      for (const int from : {0, 1}) {
        if (files[from].revents == 0) continue;
        const ssize_t count =
            recv(files[from].fd, bytes, sizeof(bytes), MSG_DONTWAIT);
        if (count <= 0) return;
        if (from == 0) {
          const size_t before = recorded_.size();
          recorded_.append(bytes, static_cast<size_t>(count));
          if (changes_.has_value() && *changes_ >= before &&
              *changes_ < recorded_.size()) {
            bytes[*changes_ - before] ^= 1;
          }
        }
        const std::string out =
            from == 0 && !leaves_out_.empty()
                ? WhatStays()
                : std::string(bytes, static_cast<size_t>(count));
        (void)send(files[1 - from].fd, out.data(), out.size(), MSG_NOSIGNAL);
      }
    }
  }

  // Of what has come from the client since the last call: whole frames, after a
  // greeting of 64 bytes, without those that are left out.
  std::string WhatStays() {
    std::string out;
    // The greeting goes on as it comes: each end waits for the other's.
    const size_t greeting = std::min(recorded_.size(), size_t{64});
    if (passed_ < greeting) {
      out = recorded_.substr(passed_, greeting - passed_);
      passed_ = greeting;
    }
    if (passed_ < 64) return out;
    while (recorded_.size() >= passed_ + 9) {
      const auto byte = [&](size_t i) {
        return static_cast<unsigned char>(recorded_[passed_ + i]);
      };
      const bool is_long = (byte(0) & 2) != 0;
      size_t size = is_long ? 0 : byte(1);
      for (size_t i = 1; is_long && i <= 8; ++i) size = size << 8 | byte(i);
      const size_t head = is_long ? 9 : 2;
      if (recorded_.size() < passed_ + head + size) break;
      const std::string frame = recorded_.substr(passed_, head + size);
      passed_ += frame.size();
      const bool is_message = frame.compare(head, 8, "\x07MESSAGE") == 0;
      const size_t number = is_message ? messages_++ : SIZE_MAX;
      if (std::find(leaves_out_.begin(), leaves_out_.end(), number) ==
          leaves_out_.end()) {
        out += frame;
      }
    }
    return out;
  }

  const int to_port_;
  const std::optional<size_t> changes_;
  const std::vector<size_t> leaves_out_;
  size_t passed_ = 0;    // Of recorded_.
  size_t messages_ = 0;  // Frames of messages among it.
  const Descriptor listener_;
  int ends_[2] = {-1, -1};
  std::string endpoint_;
  std::string recorded_;
  std::thread thread_;
};

TEST_F(KeyedTransportTest, WhatWasRecordedCountsOnce) {
  Proxy proxy(Port());
  {
    ZmqTransport worker(As(Role::kWorker));
    auto channel = Must(worker.Connect(kWorker, proxy.endpoint(), {}));
    Must(channel->Send(Probe(4711)));
    ASSERT_TRUE(Receive(kDeadline).has_value());
  }
  const std::string recorded = proxy.End();
  ASSERT_GT(recorded.size(), 300u);
  EXPECT_EQ(recorded.find("worker.2.17"), std::string::npos)
      << "who speaks is not for those between";
  const Descriptor again = ConnectTo(Port());
  ASSERT_EQ(send(again.get(), recorded.data(), recorded.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(recorded.size()));
  EXPECT_FALSE(Receive(kMoment).has_value());
  EXPECT_GE(Refused(), 1);
  ExpectServes();
}

// Of the greeting, 64 bytes, and what fills up the first command, 82, some mean
// nothing; what comes after them is proved, all of it.
TEST_F(KeyedTransportTest, AByteThatWasChangedEndsTheConnection) {
  size_t length = 0;
  {
    Proxy proxy(Port());
    ZmqTransport worker(As(Role::kWorker));
    auto channel = Must(worker.Connect(kWorker, proxy.endpoint(), {}));
    Must(channel->Send(Probe(1)));
    ASSERT_TRUE(Receive(kDeadline).has_value());
    length = proxy.End().size();
  }
  for (size_t at = 64 + 82; at < length; at += (length - 150) / 7) {
    SCOPED_TRACE(at);
    Proxy proxy(Port(), at);
    ZmqTransport worker(As(Role::kWorker));
    auto channel = Must(worker.Connect(kWorker, proxy.endpoint(),
                                       {.linger = absl::ZeroDuration()}));
    Must(channel->Send(Probe(2)));
    EXPECT_FALSE(Receive(kMoment).has_value());
  }
  ExpectServes();
}

// Frames are proved one by one. A header does not get the payload of another
// message for that.
TEST_F(KeyedTransportTest, FramesThatAreLeftOutTakeTheirMessagesAlong) {
  const auto send = [](Channel& channel, uint64_t id, std::byte value) {
    Message message = Probe(id);
    message.payloads = {Payload::Allocate(3000)};
    memset(message.payloads[0].MutableData(), static_cast<int>(value), 3000);
    Must(channel.Send(message));
  };
  // Header 1, [payload 1, header 2], payload 2, header 3, payload 3.
  Proxy proxy(Port(), std::nullopt, {1, 2});
  ZmqTransport worker(As(Role::kWorker));
  auto channel = Must(worker.Connect(kWorker, proxy.endpoint(),
                                     {.linger = absl::ZeroDuration()}));
  for (const int i : {1, 2, 3})
    send(*channel, static_cast<uint64_t>(i), static_cast<std::byte>(i));
  const auto received = Receive(kDeadline);
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->message.header.probe_request().request_id(), 3u);
  EXPECT_EQ(received->message.payloads.at(0).data()[0], std::byte{3});
  EXPECT_EQ(listener_->counts().malformed, 1);
}

// Who has shown no key fills no memory: what he sends is counted, and ends him.
TEST_F(KeyedTransportTest, AFrameWithoutEndBeforeTheKeyEndsTheConnection) {
  std::string begin = std::string("\xff\0\0\0\0\0\0\0\1\x7f\3\1", 12) +
                      std::string("CURVE").append(15, '\0');
  begin.resize(64, '\0');
  // A command of 30 MiB.
  begin += std::string("\6\0\0\0\0\1\xe0\0\0", 9);
  const Descriptor socket = ConnectTo(Port());
  ASSERT_EQ(send(socket.get(), begin.data(), begin.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(begin.size()));
  const std::string more(64 << 10, 'x');
  const absl::Time deadline = absl::Now() + kDeadline;
  int error = EAGAIN;
  while (error == EAGAIN && absl::Now() < deadline) {
    const ssize_t count = send(socket.get(), more.data(), more.size(),
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) error = errno;
    EXPECT_FALSE(Receive(absl::Milliseconds(5)).has_value());
  }
  EXPECT_TRUE(error == ECONNRESET || error == EPIPE) << error;
  EXPECT_EQ(listener_->counts().overruns, 1);
  EXPECT_THAT(listener_->counts().last_overrun,
              HasSubstr("before it had shown a key"));
  ExpectServes();
}

TEST_F(KeyedTransportTest, ThousandsThatSayNothingHoldUpNobody) {
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
  std::vector<Descriptor> silent;
  const size_t count = std::min<size_t>(1000, files.rlim_cur / 4);
  while (silent.size() < count) {
    silent.push_back(ConnectTo(Port()));
    // Half of them have begun to greet.
    if (silent.size() % 2 == 0)
      (void)send(silent.back().get(), "\xff\0\0\0\0", 5, MSG_NOSIGNAL);
    if (silent.size() % 100 == 0) {
      EXPECT_FALSE(Receive(absl::ZeroDuration()));
    }
  }
  ExpectServes();
  // Each is ended when it has shown no key in time.
  const absl::Time deadline = absl::Now() + kDeadline;
  size_t ended = 0;
  while (ended < count && absl::Now() < deadline) {
    EXPECT_FALSE(Receive(absl::Milliseconds(50)));
    ended = 0;
    for (const Descriptor& socket : silent) {
      char bytes[128];
      ssize_t got = 0;
      while ((got = recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT)) >
             0) {
      }
      ended += got == 0 || errno == ECONNRESET;
    }
  }
  EXPECT_EQ(ended, count);
  ExpectServes();
}

class SmallBoundTest : public KeyedTransportTest {
 protected:
  SmallBoundTest() : KeyedTransportTest({.unread_bytes_max = 256 << 10}) {}
};

// What is counted as read is what was sent, encrypted as it is: otherwise a
// connection would be ended after enough messages.
TEST_F(SmallBoundTest, AConnectionIsNotEndedForWhatWasRead) {
  ZmqTransport worker(As(Role::kWorker));
  auto channel = Must(worker.Connect(kWorker, endpoint_, {}));
  Message message = Probe(1);
  message.payloads = {Payload::Allocate(10), Payload::Allocate(3000)};
  const absl::Time begin = absl::Now();
  for (int i = 0; i < 20'000 || absl::Now() < begin + absl::Seconds(1); ++i) {
    Must(channel->Send(message));
    ASSERT_TRUE(Receive(kDeadline).has_value()) << i;
  }
  EXPECT_EQ(listener_->counts().overruns, 0)
      << listener_->counts().last_overrun;
}

}  // namespace slackline::keyed_transport_test
