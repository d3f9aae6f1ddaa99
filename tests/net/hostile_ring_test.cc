// All-reduce over tcp with a key, against those who do not have it: peers with
// another key or none, strangers, and somebody in the middle who records,
// repeats and changes what ranks send. Ranks are threads of this process; rank
// 0 listens, and what rank 1 connects to is not always rank 0 itself.
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/descriptor.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "worker/collective/handshake.h"
#include "worker/collective/tcp_collective.h"

namespace slackline::hostile_ring_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr absl::Duration kEndless = absl::Hours(1);
const Secret kKey({1, 2, 3});
const Secret kOtherKey({1, 2, 4});

GroupOptions OptionsOf(int rank, std::optional<Secret> key,
                       RendezvousStore* store) {
  return {.rank = Rank{rank},
          .world_size = 2,
          .host = "127.0.0.1",
          .group = "test",
          .connect_timeout = kEndless,
          .timeout = kEndless,
          .key = std::move(key),
          .store = store};
}

// What a rank has stored.
struct Entry {
  uint64_t number = 0;
  uint16_t port = 0;
};

Entry EntryOf(int rank, RendezvousStore* store) {
  const auto entry = store->Get(absl::StrCat("test/", rank), kEndless);
  SL_CHECK(entry.ok(), entry.status().ToString());
  const std::vector<std::string> words = absl::StrSplit(*entry, ' ');
  return {.number = std::stoull(words[0]),
          .port = static_cast<uint16_t>(std::stoi(words[1]))};
}

// None if nobody listens there.
Descriptor ConnectTo(uint16_t port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connected =
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address),
              sizeof(address)) == 0;
  return connected ? std::move(socket) : Descriptor();
}

struct Listener {
  Descriptor socket;
  uint16_t port = 0;
};

Listener Listen() {
  Listener listener{
      .socket = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  SL_CHECK(bind(listener.socket.get(), any, bytes) == 0 &&
               listen(listener.socket.get(), SOMAXCONN) == 0 &&
               getsockname(listener.socket.get(), any, &bytes) == 0,
           std::strerror(errno));
  listener.port = ntohs(address.sin_port);
  return listener;
}

void Write(const Descriptor& socket, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t count = send(socket.get(), bytes.data() + sent,
                               bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0) return;  // Whoever reads it has gone.
    sent += static_cast<size_t>(count);
  }
}

// Fewer if the other ends before.
std::string ReadExactly(const Descriptor& socket, size_t bytes) {
  std::string read(bytes, '\0');
  size_t count = 0;
  while (count < bytes) {
    const ssize_t more =
        recv(socket.get(), read.data() + count, bytes - count, 0);
    if (more <= 0) break;
    count += static_cast<size_t>(more);
  }
  read.resize(count);
  return read;
}

constexpr size_t kGreetingBytes = sizeof(Greeting) + Secret::kBytes;

// Stands between rank 1 and rank 0, where rank 1 connects. Hands on what it
// hears unless a test wants something else.
class MiddleBox {
 public:
  struct Ways {
    // With the greeting of rank 1; false: the connection is closed.
    std::function<bool(Purpose purpose, const std::string& greeting,
                       const Descriptor& to_0, const Descriptor& to_1)>
        on_greeting = nullptr;
    // With each record that rank 1 sends, from the proof, which is number 0.
    // Has to hand it on. False: the connection is closed.
    std::function<bool(Purpose purpose, int number, const std::string& record,
                       const Descriptor& to_0)>
        on_record = nullptr;
  };

  MiddleBox(RendezvousStore* store, Ways ways)
      : store_(store), ways_(std::move(ways)), ranks_store_(this) {
    accepts_ = std::thread([this] { Accept(); });
  }
  ~MiddleBox() {
    shutdown(listener_.socket.get(), SHUT_RDWR);
    accepts_.join();
    for (const Descriptor& socket : sockets_) {
      shutdown(socket.get(), SHUT_RDWR);
    }
    for (std::thread& thread : threads_) thread.join();
  }

  // That of rank 1.
  RendezvousStore* store() { return &ranks_store_; }

 private:
  class RanksStore final : public RendezvousStore {
   public:
    explicit RanksStore(MiddleBox* box) : box_(box) {}
    absl::Status Put(const std::string& key, std::string value) override {
      return box_->store_->Put(key, std::move(value));
    }
    absl::StatusOr<std::string> Get(const std::string& key,
                                    absl::Duration wait_max) override {
      auto value = box_->store_->Get(key, wait_max);
      if (!value.ok() || key != "test/0") return value;
      std::vector<std::string> words = absl::StrSplit(*value, ' ');
      return absl::StrCat(words[0], " ", box_->listener_.port, " ", words[2]);
    }

   private:
    MiddleBox* const box_;
  };

  // Its thread has the sockets and the threads until it ends.
  void Accept() {
    for (;;) {
      Descriptor from(accept(listener_.socket.get(), nullptr, nullptr));
      if (!from.valid()) return;
      Descriptor to = ConnectTo(EntryOf(0, store_).port);
      if (!to.valid()) continue;  // Rank 0 has given up.
      const int from_fd = dup(from.get());
      const int to_fd = dup(to.get());
      sockets_.push_back(std::move(from));
      sockets_.push_back(std::move(to));
      threads_.emplace_back(
          [this, from_fd, to_fd] { Carry(Descriptor(from_fd), to_fd); });
    }
  }

  void Carry(Descriptor from, int to_fd) {
    const Descriptor to(to_fd);
    std::thread back([&] {
      for (;;) {
        const std::string some = ReadExactly(to, 1);
        if (some.empty()) break;
        Write(from, some);
      }
      shutdown(from.get(), SHUT_RDWR);
    });
    CarryForth(from, to);
    shutdown(from.get(), SHUT_RDWR);
    shutdown(to.get(), SHUT_RDWR);
    back.join();
  }

  void CarryForth(const Descriptor& from, const Descriptor& to) {
    const std::string greeting = ReadExactly(from, kGreetingBytes);
    if (greeting.size() < kGreetingBytes) return;
    Greeting said;
    std::memcpy(&said, greeting.data(), sizeof(said));
    if (ways_.on_greeting != nullptr &&
        !ways_.on_greeting(said.purpose, greeting, to, from)) {
      return;
    }
    Write(to, greeting);
    for (int number = 0;; ++number) {
      std::string record = ReadExactly(from, 4);
      if (record.size() < 4) return;
      record += ReadExactly(
          from, RecordOpener::TextBytes(
                    reinterpret_cast<const std::byte*>(record.data())) +
                    kRecordOverheadBytes - 4);
      if (ways_.on_record == nullptr) {
        Write(to, record);
      } else if (!ways_.on_record(said.purpose, number, record, to)) {
        return;
      }
    }
  }

  RendezvousStore* const store_;
  const Ways ways_;
  RanksStore ranks_store_;
  const Listener listener_ = Listen();
  std::thread accepts_;
  std::vector<Descriptor> sockets_;
  std::vector<std::thread> threads_;
};

absl::Status AllReduce(Collective& collective, std::vector<float>& data) {
  return collective.Wait(collective.AllReduceAsync(absl::MakeSpan(data)));
}

using Created = absl::StatusOr<std::unique_ptr<Collective>>;

// Both ranks, each on a thread; the second through `box` if there is one.
std::vector<Created> CreateBoth(RendezvousStore* store, MiddleBox* box) {
  std::vector<Created> group;
  for (int rank = 0; rank < 2; ++rank) group.emplace_back(nullptr);
  std::thread other(
      [&] { group[0] = CreateTcpCollective(OptionsOf(0, kKey, store)); });
  group[1] = CreateTcpCollective(
      OptionsOf(1, kKey, box == nullptr ? store : box->store()));
  other.join();
  return group;
}

void ExpectSums(const std::vector<Created>& group) {
  constexpr size_t kSize = 100000;
  std::vector<float> data[2] = {WholeNumbers(0, kSize), WholeNumbers(1, kSize)};
  const auto ticket = (*group[0])->AllReduceAsync(absl::MakeSpan(data[0]));
  EXPECT_EQ(AllReduce(**group[1], data[1]), absl::OkStatus());
  EXPECT_EQ((*group[0])->Wait(ticket), absl::OkStatus());
  EXPECT_TRUE(data[0] == SumOfWholeNumbers(2, kSize));
  EXPECT_TRUE(data[1] == SumOfWholeNumbers(2, kSize));
}

// What an all-reduce says on each rank.
std::vector<absl::Status> StatusesOfAllReduce(const std::vector<Created>& group,
                                              size_t size) {
  std::vector<absl::Status> statuses(2);
  const auto run = [&](int rank) {
    std::vector<float> data(size, 1);
    statuses[rank] = AllReduce(**group[rank], data);
  };
  std::thread other([&] { run(0); });
  run(1);
  other.join();
  return statuses;
}

void ExpectLoss(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

constexpr char kForged[] = "is not of this job or was changed under way";

TEST(HostileRing, ABoxThatHandsOnAllIsNotNoticed) {
  SharedMemoryStore store;
  MiddleBox box(&store, {});
  const std::vector<Created> group = CreateBoth(&store, &box);
  ASSERT_TRUE(group[0].ok()) << group[0].status();
  ASSERT_TRUE(group[1].ok()) << group[1].status();
  ExpectSums(group);
}

struct RecordCase {
  const char* name;
  bool is_forged;  // As rank 0 says; else that the connection is lost.
  // Does something to the records of the ring from the third on.
  std::function<bool(int number, const std::string& record,
                     const Descriptor& to_0)>
      on_record;
};

std::string Flipped(std::string bytes, size_t at) {
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  return bytes;
}

void PrintTo(const RecordCase& hostile, std::ostream* out) {
  *out << hostile.name;
}

class HostileRecords : public ::testing::TestWithParam<RecordCase> {};

TEST_P(HostileRecords, FailBothRanksAndAreNamed) {
  const RecordCase& hostile = GetParam();
  SharedMemoryStore store;
  MiddleBox box(&store, {.on_record = [&](Purpose purpose, int number,
                                          const std::string& record,
                                          const Descriptor& to_0) {
    if (purpose == Purpose::kRing && number >= 3) {
      return hostile.on_record(number, record, to_0);
    }
    Write(to_0, record);
    return true;
  }});
  const std::vector<Created> group = CreateBoth(&store, &box);
  ASSERT_TRUE(group[0].ok()) << group[0].status();
  ASSERT_TRUE(group[1].ok()) << group[1].status();
  const std::vector<absl::Status> statuses =
      StatusesOfAllReduce(group, 1000000);
  ExpectLoss(statuses[0], "lost the connection to rank 1");
  EXPECT_EQ(absl::StrContains(statuses[0].message(), kForged),
            hostile.is_forged)
      << statuses[0];
  ExpectLoss(statuses[1], "lost the connection to rank 0");
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileRecords,
    ::testing::Values(
        RecordCase{"ABitOfTheTextFlipped", true,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, Flipped(record, 100));
                     return true;
                   }},
        RecordCase{"ABitOfTheLengthFlipped", true,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, Flipped(record, 0));
                     return true;
                   }},
        RecordCase{"ABitOfTheProofFlipped", true,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, Flipped(record, record.size() - 1));
                     return true;
                   }},
        RecordCase{
            "TwoSwapped", true,
            [kept = std::make_shared<std::string>()](
                int number, const std::string& record, const Descriptor& to) {
              if (number == 3) {
                *kept = record;
                return true;
              }
              Write(to, number == 4 ? record + *kept : record);
              return true;
            }},
        RecordCase{"OneRepeated", true,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, record + record);
                     return true;
                   }},
        RecordCase{
            "OneLeftOut", true,
            [](int number, const std::string& record, const Descriptor& to) {
              if (number != 3) Write(to, record);
              return true;
            }},
        RecordCase{"OneOfAStranger", true,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, "GET / HTTP/1.1\r\n\r\n" + record);
                     return true;
                   }},
        RecordCase{"OneCutOff", false,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, record.substr(0, record.size() / 2));
                     return false;
                   }},
        RecordCase{"TheEndAfterOne", false,
                   [](int, const std::string& record, const Descriptor& to) {
                     Write(to, record);
                     return false;
                   }}),
    [](const auto& test) { return test.param.name; });

// In place of the second record of an all-reduce of a few numbers, for which
// rank 0 then waits.
TEST(HostileRing, AForgedGoodbyeIsNone) {
  const std::string record(std::string("\1\0\0\0B", 5) + std::string(16, 'x'));
  for (const std::string& forged : {record, std::string("B")}) {
    SharedMemoryStore store;
    std::atomic<int> watch = -1;
    MiddleBox box(&store, {.on_record = [&](Purpose purpose, int number,
                                            const std::string& said,
                                            const Descriptor& to_0) {
      if (purpose == Purpose::kToAll) watch = to_0.get();
      if (purpose != Purpose::kRing || number < 2) {
        Write(to_0, said);
        return true;
      }
      send(watch, forged.data(), forged.size(), MSG_NOSIGNAL);
      shutdown(watch, SHUT_WR);
      return true;
    }});
    const std::vector<Created> group = CreateBoth(&store, &box);
    ASSERT_TRUE(group[0].ok()) << group[0].status();
    ASSERT_TRUE(group[1].ok()) << group[1].status();
    const std::vector<absl::Status> statuses = StatusesOfAllReduce(group, 10);
    ExpectLoss(statuses[0],
               forged == record
                   ? absl::StrCat("lost the connection to rank 1: what came "
                                  "from it ",
                                  kForged)
                   : "lost the connection to rank 1: it has left the group");
  }
}

TEST(HostileRing, AGreetingThatWasRecordedIsOfNoUseAndNotInTheWay) {
  SharedMemoryStore store;
  std::mutex mutex;
  std::vector<Descriptor> copies;
  std::vector<std::string> answers;
  MiddleBox box(
      &store,
      {.on_greeting =
           [&](Purpose, const std::string& greeting, const Descriptor&,
               const Descriptor&) {
             // Before rank 0 hears it from rank 1, and it stays there.
             const std::lock_guard<std::mutex> lock(mutex);
             for (int i = 0; i < 3; ++i) {
               const Descriptor& copy =
                   copies.emplace_back(ConnectTo(EntryOf(0, &store).port));
               Write(copy, greeting);
               answers.push_back(ReadExactly(copy, Handshake::kSaidBytesMax));
             }
             return true;
           },
       .on_record =
           [&](Purpose, int number, const std::string& record,
               const Descriptor& to_0) {
             const std::lock_guard<std::mutex> lock(mutex);
             // The proof as well, before rank 0 hears it from rank 1.
             if (number == 0) {
               for (const Descriptor& copy : copies) Write(copy, record);
             }
             Write(to_0, record);
             return true;
           }});
  const std::vector<Created> group = CreateBoth(&store, &box);
  ASSERT_TRUE(group[0].ok()) << group[0].status();
  ASSERT_TRUE(group[1].ok()) << group[1].status();
  ExpectSums(group);
  const std::lock_guard<std::mutex> lock(mutex);
  ASSERT_EQ(copies.size(), 6);
  for (const std::string& answer : answers) {
    EXPECT_EQ(answer.size(), Handshake::kSaidBytesMax);
  }
  for (const Descriptor& copy : copies) EXPECT_EQ(ReadExactly(copy, 1), "");
}

TEST(HostileRing, AGreetingThatComesBackIsOfNoUse) {
  SharedMemoryStore store;
  MiddleBox box(&store,
                {.on_greeting = [](Purpose, const std::string& greeting,
                                   const Descriptor&, const Descriptor& to_1) {
                  Write(to_1, greeting + std::string(20, '\0'));
                  return true;
                }});
  std::atomic<bool> over = false;
  GroupOptions options = OptionsOf(0, kKey, &store);
  options.keep_trying = [&] {
    return over ? absl::AbortedError("over") : absl::OkStatus();
  };
  std::thread rank_0([&] { EXPECT_FALSE(CreateTcpCollective(options).ok()); });
  const Created group = CreateTcpCollective(OptionsOf(1, kKey, box.store()));
  over = true;
  rank_0.join();
  ExpectLoss(group.status(),
             "no connection to rank 0 (another process has its port)");
}

// One of them has to say why; the other may have seen only that it gave up.
TEST(HostileRing, RanksWithDifferentKeysFormNoGroupAndSayWhy) {
  const std::optional<Secret> keys[] = {std::nullopt, kKey, kOtherKey};
  for (const auto& first : keys) {
    for (const auto& second : keys) {
      if (first.has_value() == second.has_value() &&
          (!first.has_value() || first->bytes() == second->bytes())) {
        continue;
      }
      SharedMemoryStore store;
      std::vector<absl::Status> statuses(2);
      std::atomic<bool> over = false;
      const auto create = [&](int rank, const std::optional<Secret>& key) {
        GroupOptions options = OptionsOf(rank, key, &store);
        options.keep_trying = [&] {
          return over ? absl::AbortedError("over") : absl::OkStatus();
        };
        statuses[rank] = CreateTcpCollective(options).status();
        over = true;
      };
      std::thread other([&] { create(0, first); });
      create(1, second);
      other.join();
      EXPECT_FALSE(statuses[0].ok());
      EXPECT_FALSE(statuses[1].ok());
      EXPECT_THAT(absl::StrCat(statuses[0].message(), statuses[1].message()),
                  AnyOf(HasSubstr("it has no key, and this rank has one"),
                        HasSubstr("it has a key, and this rank has none"),
                        HasSubstr("it has another key than this rank")));
    }
  }
}

// As what is in the store makes it.
HandshakeSelf Rank1(RendezvousStore* store, const std::optional<Secret>& key) {
  return {.rank = 1,
          .numbers = {EntryOf(0, store).number, EntryOf(1, store).number},
          .group = "test",
          .key = key,
          .awaits = nullptr};
}

// Connects to rank 0 as rank 1 does, and returns what has become of it.
Handshake::State MeetRank0(RendezvousStore* store,
                           const std::optional<Secret>& key) {
  const HandshakeSelf self = Rank1(store, key);
  Handshake handshake = Handshake::Connect(self, 0, Purpose::kToAll);
  const Descriptor socket = ConnectTo(EntryOf(0, store).port);
  while (handshake.state() == Handshake::State::kGoesOn) {
    Write(socket, handshake.TakeSaid());
    const absl::Span<std::byte> room = handshake.Room();
    const std::string heard = ReadExactly(socket, room.size());
    if (heard.size() < room.size()) break;
    std::memcpy(room.data(), heard.data(), heard.size());
    handshake.OnHeard(heard.size());
  }
  Write(socket, handshake.TakeSaid());
  // Rank 0 closes it when it has made up its mind.
  EXPECT_EQ(ReadExactly(socket, 1), "");
  return handshake.state();
}

// Lets rank 0 form its group with a rank 1 that is there only when `meanwhile`
// has returned.
void FormAfter(std::optional<Secret> key,
               const std::function<void(RendezvousStore*)>& meanwhile) {
  SharedMemoryStore store;
  std::vector<Created> group;
  for (int rank = 0; rank < 2; ++rank) group.emplace_back(nullptr);
  std::thread rank_0(
      [&] { group[0] = CreateTcpCollective(OptionsOf(0, key, &store)); });
  GroupOptions options = OptionsOf(1, key, &store);
  // Rank 1 has stored its address when this is first called, and has not yet
  // read that of rank 0.
  bool first = true;
  options.keep_trying = [&] {
    if (std::exchange(first, false)) meanwhile(&store);
    return absl::OkStatus();
  };
  group[1] = CreateTcpCollective(options);
  rank_0.join();
  ASSERT_TRUE(group[0].ok()) << group[0].status();
  ASSERT_TRUE(group[1].ok()) << group[1].status();
  ExpectSums(group);
}

TEST(HostileRing, WhoHasNoOrAnotherKeyDoesNotKeepTheRightRankOut) {
  using State = Handshake::State;
  FormAfter(kKey, [](RendezvousStore* store) {
    EXPECT_EQ(MeetRank0(store, kOtherKey), State::kHasOtherKey);
    EXPECT_EQ(MeetRank0(store, std::nullopt), State::kHasKey);
  });
  FormAfter(std::nullopt, [](RendezvousStore* store) {
    EXPECT_EQ(MeetRank0(store, kOtherKey), State::kHasNoKey);
  });
}

TEST(HostileRing, WhoCameWithNoOrAnotherKeyIsNamedIfTheGroupDoesNotForm) {
  const auto said = [](const std::optional<Secret>& own,
                       const std::optional<Secret>& other) {
    SharedMemoryStore store;
    const Listener silent = Listen();  // Where rank 0 takes rank 1 to be.
    SL_CHECK(
        store.Put("test/1", absl::StrCat("7 ", silent.port, " 127.0.0.1")).ok(),
        "the entry of rank 1");
    std::atomic<bool> over = false;
    GroupOptions options = OptionsOf(0, own, &store);
    options.keep_trying = [&] {
      return over ? absl::AbortedError("over") : absl::OkStatus();
    };
    absl::Status status;
    std::thread rank_0([&] { status = CreateTcpCollective(options).status(); });
    MeetRank0(&store, other);
    over = true;
    rank_0.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    return std::string(status.message());
  };
  EXPECT_THAT(said(kKey, kOtherKey),
              HasSubstr("(rank 1: it has another key than this rank"));
  EXPECT_THAT(said(kKey, std::nullopt), HasSubstr("(rank 1: it has no key"));
  EXPECT_THAT(said(std::nullopt, kKey), HasSubstr("(rank 1: it has a key"));
}

size_t OpenFiles() {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<size_t>(
      std::distance(Iterator("/proc/self/fd"), Iterator()));
}

TEST(HostileRing, HundredsOfHalfOpenConnectionsAreBoundedAndNotInTheWay) {
  // Such as are silent, say too little, say something else, and such that have
  // read the numbers of the group and say no more than a greeting; then only
  // the latter.
  for (const size_t first_kind : {0, 4}) {
    constexpr size_t kStrangers = 200;
    std::vector<Descriptor> strangers;
    FormAfter(kKey, [&](RendezvousStore* store) {
      const HandshakeSelf rank_1 = Rank1(store, kKey);
      const size_t files = OpenFiles();
      for (size_t i = 0; i < kStrangers; ++i) {
        const Descriptor& stranger =
            strangers.emplace_back(ConnectTo(EntryOf(0, store).port));
        const std::string greeting =
            Handshake::Connect(rank_1, 0, Purpose::kToAll).TakeSaid();
        const std::string said[] = {"", "short", std::string(1000, 'G'),
                                    greeting.substr(0, 40), greeting};
        Write(stranger, said[first_kind + i % (5 - first_kind)]);
        // Rank 0 is a thread of this process.
        EXPECT_LE(OpenFiles(), files + strangers.size() + 128 + 4);
      }
      // The last one has its answer after rank 0 has accepted all others.
      EXPECT_EQ(ReadExactly(strangers.back(), Handshake::kSaidBytesMax).size(),
                Handshake::kSaidBytesMax);
    });
    for (const Descriptor& stranger : strangers) {
      while (!ReadExactly(stranger, 1).empty()) {
      }
    }
  }
}

// Between what rank 0 has answered to the greetings and the proofs.
TEST(HostileRing, AFloodDoesNotPutOutARankAmidItsHandshake) {
  SharedMemoryStore store;
  std::mutex mutex;
  std::vector<Descriptor> strangers;
  std::latch both_have_greeted(2);
  MiddleBox box(
      &store, {.on_record = [&](Purpose, int number, const std::string& record,
                                const Descriptor& to_0) {
        if (number == 0) {
          both_have_greeted.arrive_and_wait();
          const std::lock_guard<std::mutex> lock(mutex);
          const uint16_t port = EntryOf(0, &store).port;
          for (int i = 0; i < 100; ++i) {
            strangers.push_back(ConnectTo(port));
          }
          // This one is closed after rank 0 has accepted all others.
          const Descriptor last = ConnectTo(port);
          Write(last, std::string(1000, 'G'));
          EXPECT_EQ(ReadExactly(last, 1), "");
        }
        Write(to_0, record);
        return true;
      }});
  const std::vector<Created> group = CreateBoth(&store, &box);
  ASSERT_TRUE(group[0].ok()) << group[0].status();
  ASSERT_TRUE(group[1].ok()) << group[1].status();
  ExpectSums(group);
}

}  // namespace slackline::hostile_ring_test
