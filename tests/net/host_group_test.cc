// Which way ranks on CPUs take to each other, and what strangers can do at the
// one through shared memory. Ranks are threads of this process; hosts and users
// are as the values in the store say.
#include "worker/collective/host_group.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "common/net/shm/shm_socket.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"

namespace slackline::host_group_test {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::StrEq;

using Limits = config::Limits;

// Ranks that store the addresses which `change` makes of theirs. Rank 1, of
// which tests make a stranger, finds all others changed likewise: as strange as
// it is to them.
class ChangedStore final : public RendezvousStore {
 public:
  using Change = std::function<std::string(int rank, const std::string&)>;
  ChangedStore(RendezvousStore* store, int rank, const Change& change)
      : store_(store), rank_(rank), change_(change) {}

  absl::Status Put(const std::string& key, std::string value) override {
    if (absl::StrContains(key, "/shm/")) value = change_(rank_, value);
    return store_->Put(key, std::move(value));
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override {
    absl::StatusOr<std::string> value = store_->Get(key, wait_max);
    if (value.ok() && rank_ == 1 && absl::StrContains(key, "/shm/"))
      return change_(rank_, *value);
    return value;
  }

 private:
  RendezvousStore* const store_;
  const int rank_;
  const Change& change_;
};

std::string Same(int, const std::string& address) { return address; }

struct Found {
  absl::StatusOr<ConnectedGroup> group = absl::UnknownError("");
  std::string Over() const {
    if (!group.ok()) return group.status().ToString();
    return group->why.empty() ? group->over
                              : absl::StrCat(group->over, ": ", group->why);
  }
};

class HostGroupTest : public ::testing::Test {
 protected:
  // What each of the ranks has found; those that have connected have summed.
  std::vector<std::string> Connect(
      Limits::Transport transport, const ChangedStore::Change& change = Same,
      std::optional<LinkModel> link = std::nullopt) {
    constexpr int kWorldSize = 3;
    const std::string group = absl::StrCat("group", ++groups_);
    std::vector<Found> found(kWorldSize);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ranks.emplace_back([&, rank] {
        ChangedStore store(&store_, rank, change);
        found[rank].group =
            ConnectHostGroup({.rank = Rank{rank},
                              .world_size = kWorldSize,
                              .host = "127.0.0.1",
                              .group = group,
                              .connect_timeout = absl::Minutes(5),
                              .timeout = absl::Minutes(5),
                              .link = link,
                              .store = &store},
                             transport);
        if (!found[rank].group.ok()) return;
        Collective& collective = *found[rank].group->collective;
        std::vector<float> data = WholeNumbers(rank, 200000);
        EXPECT_EQ(
            collective.Wait(collective.AllReduceAsync(absl::MakeSpan(data))),
            absl::OkStatus());
        EXPECT_TRUE(data == SumOfWholeNumbers(kWorldSize, data.size()));
      });
    }
    for (std::thread& rank : ranks) rank.join();
    std::vector<std::string> over;
    for (const Found& one : found) over.push_back(one.Over());
    return over;
  }

  SharedMemoryStore store_;
  int groups_ = 0;
};

TEST_F(HostGroupTest, RanksOfOneHostShareMemoryUnlessTheyAreToldNotTo) {
  EXPECT_THAT(Connect(Limits::AUTO), Each(StrEq("shared memory")));
  EXPECT_THAT(Connect(Limits::SHM), Each(StrEq("shared memory")));
  EXPECT_THAT(Connect(Limits::TCP), Each(StrEq("tcp")));
  EXPECT_THAT(Connect(Limits::IPC), Each(StrEq("tcp")));
}

TEST_F(HostGroupTest, ALinkIsOneOverTcp) {
  EXPECT_THAT(
      Connect(Limits::AUTO, Same, LinkModel{.latency = absl::Microseconds(1)}),
      Each(StrEq("tcp")));
}

// With at least two workers in the same words as the groups above.
TEST_F(HostGroupTest, WorkersTryTheirLinksWhereTheyMaySumOverTcp) {
  const auto may = [](const std::string& limits, const std::string& more = "",
                      const std::string& sync = "allreduce {}") {
    config::ClusterConfig config;
    SL_CHECK(google::protobuf::TextFormat::ParseFromString(
                 absl::StrCat("server { host: 'a' } worker { host: 'a' count: "
                              "2 } limits { ",
                              limits, " } sync { ", sync, " } ", more),
                 &config),
             limits);
    return MaySumOverTcp(config, WorkerProcesses(config)[0]);
  };
  EXPECT_FALSE(may("transport: AUTO"));
  EXPECT_FALSE(may("transport: SHM"));
  EXPECT_TRUE(may("transport: TCP"));
  EXPECT_TRUE(may("transport: IPC")) << "all-reduce is over tcp then";
  EXPECT_FALSE(may("transport: IPC", "", "bsp {}"));
  EXPECT_TRUE(may("transport: AUTO", "worker { host: 'b' }"));
  EXPECT_TRUE(
      may("transport: AUTO",
          "worker { host: 'a' conditions { link { latency_ms: 1 } } }"));
}

// Words of an address: bytes, user, name, host.
std::string WithWord(const std::string& address, size_t word,
                     const std::string& value) {
  std::vector<std::string> words =
      absl::StrSplit(address, absl::MaxSplits(' ', 3));
  SL_CHECK(words.size() == 4, address);
  words[word] = value;
  return absl::StrJoin(words, " ");
}

TEST_F(HostGroupTest, RanksThatCannotShareMemoryAllGoOverTcp) {
  struct Case {
    const char* what;
    size_t word;
    std::string value;
  };
  for (const Case& c : {Case{"another host", 3, "elsewhere"},
                        Case{"it is of user 4242424", 1, "4242424"},
                        Case{"its log says why", 2, ""}}) {
    SCOPED_TRACE(c.what);
    const auto change = [&](int rank, const std::string& address) {
      return rank == 1 ? WithWord(address, c.word, c.value) : address;
    };
    const std::vector<std::string> found = Connect(Limits::AUTO, change);
    EXPECT_THAT(found, Each(StartsWith("tcp: ")));
    EXPECT_THAT(found[0], HasSubstr(c.what));
    const std::vector<std::string> refused = Connect(Limits::SHM, change);
    EXPECT_THAT(refused, Each(HasSubstr("use AUTO or TCP")));
    for (const int rank : {0, 2}) {
      EXPECT_THAT(refused[rank],
                  HasSubstr(absl::StrCat("rank 1 cannot share memory with the "
                                         "others: ",
                                         c.what)));
    }
  }
}

// As with ulimit -v, from when the ranks have their own memory to when they go
// over tcp: that of others cannot be mapped.
class NoMoreAddresses final : public RendezvousStore {
 public:
  explicit NoMoreAddresses(RendezvousStore* store) : store_(store) {
    SL_CHECK(getrlimit(RLIMIT_AS, &allowed_) == 0, "getrlimit");
  }
  ~NoMoreAddresses() override { Bound(false); }

  absl::Status Put(const std::string& key, std::string value) override {
    if (!absl::StrContains(key, "/shm/")) Bound(false);
    return store_->Put(key, std::move(value));
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration wait_max) override {
    absl::StatusOr<std::string> value = store_->Get(key, wait_max);
    // When the last rank's name is there all have made theirs, and none has
    // connected.
    if (absl::StrContains(key, "/shm/") && value.ok()) Bound(true);
    return value;
  }

 private:
  void Bound(bool bounded) {
    rlimit limit = allowed_;
    if (bounded) {
      std::ifstream statm("/proc/self/statm");
      rlim_t pages = 0;
      statm >> pages;
      limit.rlim_cur =
          pages * static_cast<rlim_t>(getpagesize()) + (rlim_t{1} << 19);
    }
    SL_CHECK(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
  }

  RendezvousStore* const store_;
  rlimit allowed_{};
};

TEST_F(HostGroupTest, WhoCannotMapTheOthersMemoryTakesAllOverTcp) {
  for (const auto transport : {Limits::AUTO, Limits::SHM}) {
    const std::string group = absl::StrCat("bounded", transport);
    std::vector<Found> found(2);
    NoMoreAddresses bounded(&store_);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        RendezvousStore* const store =
            rank == 1 ? static_cast<RendezvousStore*>(&bounded) : &store_;
        found[rank].group =
            ConnectHostGroup({.rank = Rank{rank},
                              .world_size = 2,
                              .host = "127.0.0.1",
                              .group = group,
                              .connect_timeout = absl::Minutes(5),
                              .timeout = absl::Minutes(5),
                              .store = store},
                             transport);
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const Found& one : found) {
      EXPECT_THAT(one.Over(), HasSubstr("cannot share memory with the others"));
      EXPECT_THAT(one.Over(), HasSubstr("ulimit -v unlimited"));
      EXPECT_THAT(one.Over(), transport == Limits::AUTO
                                  ? StartsWith("tcp: ")
                                  : StartsWith("INVALID_ARGUMENT: limits { "
                                               "transport: SHM }"));
    }
  }
}

TEST_F(HostGroupTest, AnAddressThatIsNoneNamesItsRank) {
  for (const std::string& garbage :
       {std::string(), std::string("1 2"), std::string("x 0 name host"),
        std::string(300, '\xff')}) {
    const std::vector<std::string> found =
        Connect(Limits::AUTO, [&](int rank, const std::string& address) {
          return rank == 1 ? garbage : address;
        });
    for (const int rank : {0, 2}) {
      EXPECT_THAT(found[rank], HasSubstr("rank 1 stored")) << garbage.size();
      EXPECT_THAT(found[rank], HasSubstr("run the same build everywhere"));
    }
  }
}

// Whatever a process of this user says at the socket where ranks meet, the
// group forms without it.
TEST_F(HostGroupTest, StrangersAtTheSocketGetNowhere) {
  std::vector<Descriptor> strangers;
  const auto visit = [&](const std::string& name) {
    const Descriptor writable(memfd_create("stranger", MFD_CLOEXEC));
    const std::string greeting =
        absl::StrCat(std::string("lAlS", 4), std::string("\x01\0\0\0", 4));
    for (const std::string& words :
         {std::string("hello"), greeting, std::string(4096, '\x7f')}) {
      for (const bool gives : {false, true}) {
        absl::StatusOr<Descriptor> socket = ConnectShm(name);
        ASSERT_TRUE(socket.ok()) << socket.status();
        const int file = writable.get();
        ASSERT_TRUE(SendPacket(
            *socket,
            {reinterpret_cast<const std::byte*>(words.data()), words.size()},
            {&file, gives ? size_t{1} : size_t{0}}));
        strangers.push_back(*std::move(socket));
      }
    }
    absl::StatusOr<Descriptor> silent = ConnectShm(name);
    ASSERT_TRUE(silent.ok()) << silent.status();
    strangers.push_back(*std::move(silent));
  };
  EXPECT_THAT(Connect(Limits::SHM,
                      [&](int rank, const std::string& address) {
                        // Before anybody else can know the name.
                        if (rank == 0) {
                          const std::vector<std::string> words =
                              absl::StrSplit(address, absl::MaxSplits(' ', 3));
                          visit(words[2]);
                        }
                        return address;
                      }),
              Each(StrEq("shared memory")));
  EXPECT_EQ(strangers.size(), 7u);
}

size_t LinesOf(const std::string& file, const std::string& word) {
  std::ifstream in(file);
  size_t lines = 0;
  for (std::string line; std::getline(in, line);)
    lines += absl::StrContains(line, word);
  return lines;
}

TEST_F(HostGroupTest, NothingIsLeftOfAGroup) {
  for (int round = 0; round < 5; ++round) {
    EXPECT_THAT(Connect(Limits::SHM), Each(StrEq("shared memory")));
    EXPECT_EQ(LinesOf("/proc/self/maps", "memfd:slackline"), 0u);
  }
}

}  // namespace slackline::host_group_test
