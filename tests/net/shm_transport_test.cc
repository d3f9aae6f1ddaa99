// Goal: connections through shared memory end with their peers, however these
// die, and leave nothing behind; nobody waits for a message that is there; and
// a stranger at the socket gets nowhere.
// Method: processes and threads of this host. What any transport does is in
// transport_test.
#include "common/net/shm/shm_transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "common/net/host_id.h"
#include "common/net/peer_links.h"
#include "common/net/poller.h"
#include "common/net/shm/shm_socket.h"
#include "common/net/shm/shm_stream.h"
#include "common/process/address_limit.h"
#include "common/rng.h"
#include "tests/support/memory_transport.h"
#include "tests/support/must.h"
#include "tests/support/small_view.h"

namespace slackline::shm_transport_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);
constexpr PeerId kWorker = {PeerId::Kind::kWorker, 2, 17};

Message Numbered(uint64_t number, size_t bytes = 0) {
  Message message;
  message.header.mutable_probe_request()->set_request_id(number);
  if (bytes == 0) return message;
  Payload payload = Payload::Allocate(bytes);
  std::memset(payload.MutableData(), static_cast<int>(number & 0x7f), bytes);
  message.payloads.push_back(std::move(payload));
  return message;
}

uint64_t NumberOf(const Message& message) {
  return message.header.probe_request().request_id();
}

bool IsWhole(const Message& message) {
  const auto byte = static_cast<std::byte>(NumberOf(message) & 0x7f);
  for (const Payload& payload : message.payloads) {
    for (const std::byte at : payload.bytes()) {
      if (at != byte) return false;
    }
  }
  return true;
}

// Waits until `condition` holds, while `step` is called.
bool Eventually(
    const std::function<bool()>& condition,
    const std::function<void()>& step = [] {}) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    step();
    absl::SleepFor(absl::Microseconds(100));
  }
  return true;
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

size_t MappedMemfds() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += absl::StrContains(line, "memfd:slackline");
  return count;
}

class ShmTransportTest : public ::testing::Test {
 protected:
  ShmTransportTest() : listener_(Must(transport_.Listen({}))) {
    endpoint_ = Must(listener_->Bind(UniqueShmEndpoint()));
  }

  void ExpectServes(Channel& channel, uint64_t number, size_t bytes = 0) {
    Must(channel.Send(Numbered(number, bytes)));
    std::optional<Message> reply;
    EXPECT_TRUE(
        Eventually([&] { return reply.has_value(); },
                   [&] {
                     if (auto request = Must(listener_->Receive()))
                       Must(listener_->Send(request->from, request->message));
                     reply = Must(channel.Receive());
                   }));
    if (!reply.has_value()) return;
    EXPECT_EQ(NumberOf(*reply), number);
    EXPECT_TRUE(IsWhole(*reply));
  }

  MemoryTransport others_;
  ShmTransport transport_{others_};
  std::unique_ptr<Listener> listener_;
  std::string endpoint_;
};

TEST_F(ShmTransportTest, BothKindsOfEndpointsAreServed) {
  const std::string other = Must(listener_->Bind("memory://router"));
  auto here = Must(transport_.Connect(kWorker, endpoint_, {}));
  auto elsewhere =
      Must(transport_.Connect({PeerId::Kind::kWorker, 3, 18}, other, {}));
  ExpectServes(*here, 1);
  ExpectServes(*elsewhere, 2);
  ExpectServes(*here, 3);
  // The one that was heard last counts.
  auto same = Must(transport_.Connect(kWorker, other, {}));
  ExpectServes(*same, 4);
  ExpectServes(*here, 5);
}

// 5,000 numbered messages of one sender arrive in order, and whoever sleeps is
// woken: with a wake that is missed this test would not end.
TEST_F(ShmTransportTest, NumberedMessagesUnderLoadArriveInOrder) {
  constexpr uint64_t kMessages = 5000;
  std::atomic<bool> good{true};
  std::thread worker([&] {
    auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
    Poller poller;
    poller.Add(*channel);
    Rng rng(1);
    uint64_t sent = 0;
    uint64_t heard = 0;
    while (heard < kMessages) {
      while (sent < kMessages && sent - heard < 64) {
        ++sent;
        Must(channel->Send(Numbered(sent, rng.Below(100000))));
        if (rng.Chance(0.02)) break;
      }
      Must(poller.Wait(kDeadline));
      while (const auto reply = Must(channel->Receive())) {
        good = good && NumberOf(*reply) == ++heard && IsWhole(*reply);
      }
    }
  });
  Poller poller;
  poller.Add(*listener_);
  uint64_t next = 1;
  std::vector<Message> held;
  while (next <= kMessages) {
    Must(poller.Wait(kDeadline));
    while (auto request = Must(listener_->Receive())) {
      EXPECT_EQ(NumberOf(request->message), next++);
      EXPECT_TRUE(IsWhole(request->message));
      Must(listener_->Send(request->from, request->message));
      held.push_back(std::move(request->message));
      if (held.size() > 40) held.clear();
    }
  }
  worker.join();
  EXPECT_TRUE(good);
}

// Two that have nothing to say to each other let each other sleep.
TEST_F(ShmTransportTest, IdleEndsSleep) {
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  std::atomic<bool> stopping{false};
  std::atomic<int> woken{0};
  Waker waker;
  std::thread worker([&] {
    Poller poller;
    poller.Add(*channel);
    poller.Add(waker);
    Must(channel->Send(Numbered(1, 5000)));
    for (; !stopping; ++woken) {
      Must(poller.Wait(kDeadline));
      Must(channel->Receive());
    }
  });
  Poller poller;
  poller.Add(*listener_);
  const absl::Time until = absl::Now() + absl::Milliseconds(300);
  for (; absl::Now() < until; ++woken) {
    Must(poller.Wait(until - absl::Now()));
    while (auto request = Must(listener_->Receive()))
      Must(listener_->Send(request->from, request->message));
  }
  stopping = true;
  waker.Wake();
  worker.join();
  EXPECT_LT(woken, 30);
}

// What finds no room in the ring goes on as soon as there is, although nobody
// sends anything.
TEST_F(ShmTransportTest, AListenerThatSleepsWritesOnWhenThereIsRoom) {
  ShmTransport small(others_, {.arena_bytes = 4096});
  auto listener = Must(small.Listen({}));
  const std::string endpoint = Must(listener->Bind(UniqueShmEndpoint()));
  std::atomic<bool> done{false};
  std::thread worker([&] {
    auto channel = Must(transport_.Connect(kWorker, endpoint, {}));
    Poller poller;
    poller.Add(*channel);
    Must(channel->Send(Numbered(1)));
    const absl::Time deadline = absl::Now() + kDeadline;
    std::optional<Message> reply;
    while (!reply.has_value() && absl::Now() < deadline) {
      Must(poller.Wait(deadline - absl::Now()));
      reply = Must(channel->Receive());
    }
    EXPECT_TRUE(reply.has_value() && IsWhole(*reply));
    done = true;
  });
  Poller poller;
  poller.Add(*listener);
  std::optional<Listener::Incoming> request;
  while (!request.has_value()) {
    Must(poller.Wait(kDeadline));
    request = Must(listener->Receive());
  }
  // The thread has slept since it heard the peer.
  EXPECT_EQ(Must(listener->Receive()), std::nullopt);
  Must(poller.Wait(absl::Milliseconds(5)));
  Must(listener->Send(kWorker, Numbered(2, size_t{20} << 20)));
  while (!done) {
    Must(poller.Wait(absl::Milliseconds(100)));
    EXPECT_EQ(Must(listener->Receive()), std::nullopt);
  }
  worker.join();
}

TEST_F(ShmTransportTest, AChannelFindsAListenerThatComesBack) {
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  ExpectServes(*channel, 1, 5000);
  listener_.reset();
  Message lost = Numbered(2, 5000);
  Must(channel->Send(lost));
  ASSERT_TRUE(Eventually([&] {
    return Must(channel->Receive()) == std::nullopt &&
           Must(channel->WaitMax()) > absl::ZeroDuration();
  }));
  listener_ = Must(transport_.Listen({}));
  Must(listener_->Bind(endpoint_));
  // What was sent into the connection that has ended is lost, or not.
  Must(channel->Send(Numbered(3, 5000)));
  std::optional<Message> reply;
  ASSERT_TRUE(
      Eventually([&] { return reply && NumberOf(*reply) == 3; },
                 [&] {
                   if (auto request = Must(listener_->Receive()))
                     Must(listener_->Send(request->from, request->message));
                   if (auto next = Must(channel->Receive()))
                     reply = std::move(next);
                 }));
}

TEST_F(ShmTransportTest, WhatWasReceivedStaysWhenTheChannelHasEnded) {
  std::vector<Message> held;
  for (uint64_t number = 1; number <= 20; ++number) {
    auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
    Must(channel->Send(Numbered(number, 50000)));
    ASSERT_TRUE(Eventually([&] {
      auto request = Must(listener_->Receive());
      if (request.has_value()) held.push_back(std::move(request->message));
      return held.size() == number;
    }));
  }
  for (const Message& message : held) EXPECT_TRUE(IsWhole(message));
}

TEST_F(ShmTransportTest, NothingIsLeftOfConnectionsThatHaveEnded) {
  { ExpectServes(*Must(transport_.Connect(kWorker, endpoint_, {})), 1, 5000); }
  const auto settle = [&] {
    EXPECT_EQ(Must(listener_->Receive()), std::nullopt);
  };
  settle();
  const size_t descriptors = OpenDescriptors();
  const size_t mapped = MappedMemfds();
  for (uint64_t i = 1; i <= 50; ++i) {
    auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
    ExpectServes(*channel, i, 5000);
  }
  EXPECT_TRUE(Eventually(
      [&] {
        return OpenDescriptors() <= descriptors && MappedMemfds() <= mapped;
      },
      settle))
      << OpenDescriptors() << " and " << MappedMemfds() << ", not "
      << descriptors << " and " << mapped;
}

// A process that sends numbered messages, and takes answers, for ever.
pid_t StartPusher(const std::string& endpoint, uint64_t seed) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  MemoryTransport others;
  ShmTransport transport(others);
  auto channel = Must(transport.Connect(kWorker, endpoint, {}));
  Poller poller;
  poller.Add(*channel);
  Rng rng(seed);
  std::vector<Message> held;
  for (uint64_t sent = 0, heard = 0;;) {
    for (; sent - heard < 16; ++sent)
      Must(channel->Send(Numbered(sent + 1, rng.Below(1 << 20))));
    Must(poller.Wait(kDeadline));
    while (auto reply = Must(channel->Receive())) {
      ++heard;
      held.push_back(std::move(*reply));
      if (held.size() > 10) held.clear();
    }
  }
}

TEST_F(ShmTransportTest, PeersThatAreKilledInTheMiddleLeaveNothing) {
  constexpr int kKills = 100;
  Rng rng(3);
  size_t descriptors = 0;
  size_t mapped = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t pid = StartPusher(endpoint_, rng.Next());
    const uint64_t after = 1 + rng.Below(60);
    uint64_t next = 1;
    std::vector<Message> held;
    const auto take = [&] {
      auto request = Must(listener_->Receive());
      if (!request.has_value()) return;
      EXPECT_EQ(NumberOf(request->message), next++);
      EXPECT_TRUE(IsWhole(request->message));
      // It may not read any more.
      listener_->Send(request->from, request->message).IgnoreError();
      held.push_back(std::move(request->message));
      if (held.size() > 10) held.clear();
    };
    ASSERT_TRUE(Eventually([&] { return next > after; }, take));
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    // What it had sent is whole, too; then nothing is left of it.
    const auto left = [&] {
      return absl::StrCat(OpenDescriptors(), " descriptors, ", MappedMemfds(),
                          " maps");
    };
    ASSERT_TRUE(Eventually(
        [&] {
          return kill_number == 0 ? MappedMemfds() <= 1
                                  : OpenDescriptors() <= descriptors &&
                                        MappedMemfds() <= mapped;
        },
        [&] {
          take();
          held.clear();
        }))
        << left() << ", not " << descriptors << " and " << mapped;
    if (kill_number > 0) continue;
    descriptors = OpenDescriptors();
    mapped = MappedMemfds();
  }
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  ExpectServes(*channel, 1, 5000);
}

TEST(ShmListenerDeath, AChannelGoesOnWithTheNextListener) {
  constexpr int kKills = 100;
  const std::string endpoint = UniqueShmEndpoint();
  const auto start = [&] {
    const pid_t pid = fork();
    if (pid != 0) return pid;
    MemoryTransport others;
    ShmTransport transport(others);
    auto listener = Must(transport.Listen({}));
    Must(listener->Bind(endpoint));
    Poller poller;
    poller.Add(*listener);
    while (true) {
      Must(poller.Wait(kDeadline));
      while (auto request = Must(listener->Receive()))
        listener->Send(request->from, request->message).IgnoreError();
    }
  };
  Rng rng(4);
  // Before the first process: it would inherit what is open.
  pid_t server = start();
  MemoryTransport others;
  ShmTransport transport(others);
  auto channel = Must(transport.Connect(kWorker, endpoint, {}));
  Poller poller;
  poller.Add(*channel);
  uint64_t number = 0;
  size_t descriptors = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    uint64_t answers = 0;
    const uint64_t wanted = 1 + rng.Below(40);
    const absl::Time deadline = absl::Now() + kDeadline;
    while (answers < wanted && absl::Now() < deadline) {
      // As protocols do, it asks again for what was not answered.
      channel->Send(Numbered(++number, rng.Below(1 << 20))).IgnoreError();
      Must(poller.Wait(absl::Milliseconds(10)));
      while (const auto reply = Must(channel->Receive())) {
        ASSERT_TRUE(IsWhole(*reply));
        ++answers;
      }
    }
    ASSERT_GE(answers, wanted) << "after " << kill_number << " kills";
    if (kill_number == 0) descriptors = OpenDescriptors();
    kill(server, SIGKILL);
    waitpid(server, nullptr, 0);
    server = start();
  }
  // In the middle of the last connection there may be one more.
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= descriptors; },
                         [&] {
                           channel->Send(Numbered(++number)).IgnoreError();
                           Must(channel->Receive());
                         }))
      << OpenDescriptors() << ", not " << descriptors;
  EXPECT_LE(MappedMemfds(), 3u);
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
}

// Whoever connects and does not say who it is in the right way is shown the
// door, and a good peer is served after each as before.
TEST_F(ShmTransportTest, StrangersAtTheSocketGetNowhere) {
  const std::string name = endpoint_.substr(std::strlen("shm://@"));
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  ExpectServes(*channel, 1);
  const int not_sealed = memfd_create("x", MFD_CLOEXEC);
  const int event = eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(ftruncate(not_sealed, 1 << 30), 0);
  struct Hello {
    uint64_t version = 0x736c6b73686d3031;
    uint64_t arena_bytes = 4096;
    char peer[64] = "worker.5.1";
  };
  Hello another_version;
  another_version.version += 1;
  Hello endless;
  std::memset(endless.peer, 'x', sizeof(endless.peer));
  Hello nobody;
  std::strcpy(nobody.peer, "nobody");
  Hello huge;
  huge.arena_bytes = ~uint64_t{0};
  struct Case {
    std::string bytes;
    std::vector<int> descriptors;
  };
  const auto bytes_of = [](const Hello& hello) {
    return std::string(reinterpret_cast<const char*>(&hello), sizeof(hello));
  };
  const std::vector<Case> cases = {
      {"x", {}},
      {std::string(4000, 'x'), {}},
      {bytes_of({}), {}},
      {bytes_of({}), {event}},
      {bytes_of({}), {event, event}},
      {bytes_of({}), {not_sealed, not_sealed}},
      {bytes_of({}), {not_sealed, not_sealed, event, event}},
      {bytes_of(another_version), {not_sealed, not_sealed}},
      {bytes_of(endless), {not_sealed, not_sealed}},
      {bytes_of(nobody), {not_sealed, not_sealed}},
      {bytes_of(huge), {not_sealed, not_sealed}},
  };
  int64_t malformed = 0;
  for (const Case& test : cases) {
    const Descriptor socket = Must(ConnectShm(name));
    ASSERT_TRUE(
        SendPacket(socket,
                   {reinterpret_cast<const std::byte*>(test.bytes.data()),
                    test.bytes.size()},
                   test.descriptors));
    ++malformed;
    std::array<std::byte, 64> answer;
    EXPECT_TRUE(Eventually(
        [&] {
          return ReceivePacket(socket, absl::MakeSpan(answer)).kind ==
                 PacketKind::kGone;
        },
        [&] { EXPECT_EQ(Must(listener_->Receive()), std::nullopt); }));
    EXPECT_EQ(listener_->counts().malformed, malformed);
    ExpectServes(*channel, 2);
  }
  // Who says nothing is not waited for.
  std::vector<Descriptor> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(Must(ConnectShm(name)));
  ExpectServes(*channel, 3);
  close(not_sealed);
  close(event);
}

// With too many open files: and nothing is tried in the meantime.
TEST_F(ShmTransportTest, WhoFindsNoRoomWaitsAsleep) {
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  rlimit allowed{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &allowed), 0);
  // All numbers below are in use then.
  const Descriptor next(eventfd(0, 0));
  rlimit none = allowed;
  none.rlim_cur = static_cast<rlim_t>(next.get());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_FALSE(Must(listener_->Receive()).has_value());
  for (const int descriptor : listener_->Descriptors()) {
    pollfd entry = {.fd = descriptor, .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, 0), 0) << "it would be tried again and again";
  }
  EXPECT_GT(Must(listener_->WaitMax()), absl::ZeroDuration());
  EXPECT_LT(Must(listener_->WaitMax()), absl::InfiniteDuration());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &allowed), 0);
  ExpectServes(*channel, 1);
}

TEST_F(ShmTransportTest, ABoundOnAddressesMakesASmallArena) {
  const auto arena_bytes = [&] {
    ShmTransport transport(others_);
    return Must(transport.Arena())->memory().size();
  };
  EXPECT_EQ(arena_bytes(), ShmTransport::Options().arena_bytes);
  rlimit allowed{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &allowed), 0);
  rlimit bounded = allowed;
  bounded.rlim_cur = rlim_t{1} << 60;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &bounded), 0);
  EXPECT_EQ(arena_bytes(), 2 * ShmTransport::Options().copies_bytes_max);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &allowed), 0);
}

// As with ulimit -v: there is room for little more than there is.
class BoundedAddresses {
 public:
  BoundedAddresses() {
    SL_CHECK(getrlimit(RLIMIT_AS, &allowed_) == 0, "getrlimit");
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    rlimit bounded = allowed_;
    bounded.rlim_cur =
        pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{1} << 30);
    SL_CHECK(setrlimit(RLIMIT_AS, &bounded) == 0, "setrlimit");
  }
  ~BoundedAddresses() { setrlimit(RLIMIT_AS, &allowed_); }

 private:
  rlimit allowed_{};
};

TEST_F(ShmTransportTest, WhoseMemoryCannotBeMappedIsToldWhy) {
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  Must(channel->Send(Numbered(1)));
  absl::Status refused;
  {
    // The listener maps the channel's arena when it looks for it.
    const BoundedAddresses bounded;
    ASSERT_TRUE(Eventually([&] { return !refused.ok(); },
                           [&] {
                             Must(listener_->Receive());
                             refused = channel->Receive().status();
                           }));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ulimit -v"));
  EXPECT_TRUE(absl::IsFailedPrecondition(channel->Send(Numbered(2))));
  EXPECT_EQ(Must(channel->WaitMax()), absl::ZeroDuration());
  EXPECT_EQ(listener_->counts().malformed, 0);
}

TEST_F(ShmTransportTest, WhoCannotMapTheOtherArenaGivesUpToo) {
  auto channel = Must(transport_.Connect(kWorker, endpoint_, {}));
  // The listener takes the connection, then the greeting, and answers.
  pollfd answer = {
      .fd = channel->Descriptors()[0], .events = POLLIN, .revents = 0};
  ASSERT_TRUE(Eventually([&] { return poll(&answer, 1, 0) == 1; },
                         [&] { Must(listener_->Receive()); }));
  const BoundedAddresses bounded;
  EXPECT_TRUE(absl::IsFailedPrecondition(channel->Receive().status()));
}

// Of a process, before libraries find that out in their way.
TEST_F(ShmTransportTest, TooFewAddressesAreASentence) {
  EXPECT_TRUE(CheckAddressesLeft(size_t{1} << 40).ok()) << "without a bound";
  const BoundedAddresses bounded;
  EXPECT_TRUE(CheckAddressesLeft(1 << 20).ok());
  const absl::Status few = CheckAddressesLeft(size_t{2} << 30);
  EXPECT_TRUE(absl::IsResourceExhausted(few)) << few;
  EXPECT_THAT(std::string(few.message()), HasSubstr("at least ulimit -v "));
}

// Each connection is ended at once, as by a process of another user namespace.
TEST_F(ShmTransportTest, LinksTakeTcpWhereMemoryIsRefused) {
  auto listener = Must(others_.Listen({}));
  const std::string tcp = Must(listener->Bind("tcp://127.0.0.1:0"));
  const std::string shm = UniqueShmEndpoint();
  const Descriptor strict = Must(ListenShm(shm.substr(sizeof("shm://@") - 1)));
  wire::ServerMember server;
  server.set_incarnation(5);
  server.set_host_id(HostId());
  wire::Endpoints& thread = *server.add_thread();
  thread.add_endpoint(tcp);
  thread.add_endpoint(shm);
  thread.set_uid(geteuid());
  const auto view =
      Must(View::Create(SmallView({.servers = {server}, .workers = {17}})));
  for (const auto kind : {config::Limits::AUTO, config::Limits::SHM}) {
    Poller poller;
    PeerLinks links(transport_, poller, kind);
    links.Follow(kWorker, view);
    absl::Status status;
    bool received = false;
    ASSERT_TRUE(Eventually(
        [&] { return received || !status.ok(); },
        [&] {
          status.Update(links.Send({0, 0}, Numbered(1)));
          status.Update(links.Receive([](Owner, Message&) {}));
          TurnedAway others;
          Must(AcceptShm(strict, &others));
          received = received || Must(listener->Receive()).has_value();
        }));
    if (kind == config::Limits::AUTO) {
      EXPECT_TRUE(received) << status;
      continue;
    }
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("server 0"), HasSubstr("another user"),
                      HasSubstr("use AUTO or TCP")));
  }
}

TEST_F(ShmTransportTest, NobodyAtTheAddressIsGoneUntilAnotherListens) {
  const std::string endpoint = UniqueShmEndpoint();
  auto channel =
      Must(transport_.Connect(kWorker, endpoint, {.watch_link = true}));
  EXPECT_EQ(Must(channel->ReceiveLinkState()), LinkState::kGone);
  EXPECT_EQ(Must(channel->ReceiveLinkState()), std::nullopt);
  auto listener = Must(transport_.Listen({}));
  Must(listener->Bind(endpoint));
  std::optional<LinkState> state;
  EXPECT_TRUE(Eventually([&] { return state == LinkState::kUp; },
                         [&] {
                           Must(listener->Receive());
                           Must(channel->Receive());
                           if (const auto news =
                                   Must(channel->ReceiveLinkState()))
                             state = news;
                         }));
}

TEST_F(ShmTransportTest, AMessageBeyondTheBoundEndsItsConnection) {
  auto listener = Must(transport_.Listen({.unread_bytes_max = 100000}));
  const std::string endpoint = Must(listener->Bind(UniqueShmEndpoint()));
  auto channel = Must(transport_.Connect(kWorker, endpoint, {}));
  Must(channel->Send(Numbered(1, 200000)));
  EXPECT_TRUE(Eventually([&] { return listener->counts().malformed == 1; },
                         [&] {
                           EXPECT_EQ(Must(listener->Receive()), std::nullopt);
                           Must(channel->Receive());
                         }));
}

TEST_F(ShmTransportTest, TheEndOfAChannelWaitsForRoom) {
  ShmTransport small(others_, {.arena_bytes = 4096});
  const Message large = Numbered(9, size_t{4} << 20);
  std::thread worker([&] {
    auto channel =
        Must(small.Connect(kWorker, endpoint_, {.linger = kDeadline}));
    Must(channel->Send(large));
  });
  std::optional<Listener::Incoming> received;
  EXPECT_TRUE(Eventually([&] { return received.has_value(); },
                         [&] { received = Must(listener_->Receive()); }));
  EXPECT_TRUE(received.has_value() && IsWhole(received->message));
  worker.join();
}

}  // namespace slackline::shm_transport_test
