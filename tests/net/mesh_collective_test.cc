// The collectives of ranks that train on CPUs, each test over tcp, over tcp
// with a key, and through shared memory. Ranks are threads of this process,
// each with its own collective, or processes where one of them is to be killed.
// tcp is loopback, on ports that the system picks. Where nothing but the event
// under test may end a wait, the timeout is kEndless and a hang is the test
// runner's timeout.
#include "worker/collective/mesh_collective.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/io/descriptor.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "worker/collective/shm_collective.h"
#include "worker/collective/tcp_collective.h"

namespace slackline::mesh_collective_test {

using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::NotNull;

constexpr absl::Duration kEndless = absl::Hours(1);

GroupOptions OptionsOf(int rank, int world_size, absl::Duration timeout,
                       RendezvousStore* store) {
  return {.rank = Rank{rank},
          .world_size = world_size,
          .host = "127.0.0.1",
          .group = "test",
          .connect_timeout = kEndless,
          .timeout = timeout,
          .store = store};
}

// Runs `rank_main` for all ranks at once, each on a thread.
void OnAllRanks(int world_size, const std::function<void(int)>& rank_main) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&rank_main, rank] { rank_main(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

enum class Over { kTcp, kKeyedTcp, kSharedMemory };

const char* OverText(Over over) {
  return over == Over::kTcp        ? "tcp"
         : over == Over::kKeyedTcp ? "keyed_tcp"
                                   : "shm";
}

absl::StatusOr<std::unique_ptr<Collective>> CreateOver(Over over,
                                                       GroupOptions options) {
  if (over == Over::kKeyedTcp) options.key = Secret({7, 1, 9});
  return over == Over::kSharedMemory ? CreateShmCollective(options)
                                     : CreateTcpCollective(options);
}

std::vector<std::unique_ptr<Collective>> CreateGroupOver(
    Over over, int world_size, absl::Duration timeout) {
  SharedMemoryStore store;
  std::vector<std::unique_ptr<Collective>> group(world_size);
  OnAllRanks(world_size, [&](int rank) {
    auto collective =
        CreateOver(over, OptionsOf(rank, world_size, timeout, &store));
    ASSERT_TRUE(collective.ok()) << collective.status();
    group[rank] = *std::move(collective);
  });
  for (const auto& collective : group) {
    SL_CHECK(collective != nullptr, "the group was not created");
  }
  return group;
}

absl::Status AllReduce(Collective& collective, std::vector<float>& data) {
  return collective.Wait(collective.AllReduceAsync(absl::MakeSpan(data)));
}

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

class MeshCollectiveSum
    : public ::testing::TestWithParam<std::tuple<Over, int>> {
 protected:
  int world_size() const { return std::get<1>(GetParam()); }
  std::vector<std::unique_ptr<Collective>> CreateGroup() const {
    return CreateGroupOver(std::get<0>(GetParam()), world_size(),
                           absl::Seconds(60));
  }
};

INSTANTIATE_TEST_SUITE_P(
    WorldSizes, MeshCollectiveSum,
    ::testing::Combine(::testing::Values(Over::kTcp, Over::kKeyedTcp,
                                         Over::kSharedMemory),
                       ::testing::Values(1, 2, 3, 4)),
    [](const auto& test) {
      return absl::StrCat(OverText(std::get<0>(test.param)),
                          std::get<1>(test.param));
    });

class MeshCollectiveTest : public ::testing::TestWithParam<Over> {
 protected:
  absl::StatusOr<std::unique_ptr<Collective>> Create(
      const GroupOptions& options) const {
    return CreateOver(GetParam(), options);
  }
  std::vector<std::unique_ptr<Collective>> CreateGroup(
      int world_size, absl::Duration timeout) const {
    return CreateGroupOver(GetParam(), world_size, timeout);
  }
  void StoreAddressesAndDie(GroupOptions options) const;
};

INSTANTIATE_TEST_SUITE_P(Over, MeshCollectiveTest,
                         ::testing::Values(Over::kTcp, Over::kKeyedTcp,
                                           Over::kSharedMemory),
                         [](const auto& test) { return OverText(test.param); });

TEST_P(MeshCollectiveSum, EveryRankGetsTheSumForAnySize) {
  const int world_size = this->world_size();
  const auto group = CreateGroup();
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{1} << 20}) {
    const std::vector<float> sum = SumOfWholeNumbers(world_size, size);
    OnAllRanks(world_size, [&](int rank) {
      EXPECT_EQ(group[rank]->rank(), Rank{rank});
      EXPECT_EQ(group[rank]->world_size(), world_size);
      std::vector<float> data = WholeNumbers(rank, size);
      EXPECT_EQ(AllReduce(*group[rank], data), absl::OkStatus());
      EXPECT_TRUE(data == sum) << "rank " << rank << ", size " << size;
    });
  }
}

TEST_P(MeshCollectiveTest, AnAllReduceTakesAtLeastTheTimeOfItsLink) {
  constexpr int kWorldSize = 3;
  constexpr size_t kSize = 30000;
  // Four transfers of 40,000 bytes.
  const LinkModel link{.latency = absl::Milliseconds(5),
                       .bytes_per_second = 1e7};
  const absl::Duration least = absl::Milliseconds(4 * (5 + 4));
  SharedMemoryStore store;
  OnAllRanks(kWorldSize, [&](int rank) {
    GroupOptions options =
        OptionsOf(rank, kWorldSize, absl::Seconds(60), &store);
    options.link = link;
    const auto group = Create(options);
    ASSERT_TRUE(group.ok()) << group.status();
    for (int i = 0; i < 2; ++i) {
      std::vector<float> data = WholeNumbers(rank, kSize);
      const auto start = std::chrono::steady_clock::now();
      EXPECT_EQ(AllReduce(**group, data), absl::OkStatus());
      EXPECT_GE(absl::FromChrono(std::chrono::steady_clock::now() - start),
                least);
      EXPECT_TRUE(data == SumOfWholeNumbers(kWorldSize, kSize));
    }
  });
}

TEST_P(MeshCollectiveTest, AbortEndsTheTimeOfALink) {
  constexpr int kWorldSize = 2;
  SharedMemoryStore store;
  // A rank that aborts cuts off one that is still connecting, so all are
  // connected before the first aborts.
  std::vector<std::unique_ptr<Collective>> group(kWorldSize);
  OnAllRanks(kWorldSize, [&](int rank) {
    GroupOptions options = OptionsOf(rank, kWorldSize, kEndless, &store);
    options.link = LinkModel{.latency = kEndless};
    auto created = Create(options);
    ASSERT_TRUE(created.ok()) << created.status();
    group[rank] = *std::move(created);
  });
  ASSERT_THAT(group, Each(NotNull()));
  std::vector<std::vector<float>> data(kWorldSize,
                                       std::vector<float>(10, 1.0f));
  std::vector<Collective::Ticket> tickets;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    tickets.push_back(group[rank]->AllReduceAsync(absl::MakeSpan(data[rank])));
  }
  group[0]->Abort(absl::CancelledError("enough"));
  EXPECT_EQ(group[0]->Wait(tickets[0]), absl::CancelledError("enough"));
  // May have lost the other one meanwhile, which then is the reason.
  group[1]->Abort(absl::CancelledError("enough"));
  EXPECT_FALSE(group[1]->Wait(tickets[1]).ok());
}

TEST_P(MeshCollectiveTest, GivesTheSameBitsOnEveryRankAndInEveryRun) {
  constexpr int kWorldSize = 4;
  constexpr size_t kSize = 100003;  // No multiple of anything in the ring.
  std::vector<std::vector<float>> results;
  for (int run = 0; run < 3; ++run) {
    const auto group = CreateGroup(kWorldSize, absl::Seconds(60));
    std::vector<std::vector<float>> data(kWorldSize);
    OnAllRanks(kWorldSize, [&](int rank) {
      Rng rng(rank);
      data[rank].resize(kSize);
      for (float& value : data[rank]) value = static_cast<float>(rng.Normal());
      EXPECT_EQ(AllReduce(*group[rank], data[rank]), absl::OkStatus());
    });
    for (std::vector<float>& result : data) {
      results.push_back(std::move(result));
    }
  }
  for (const std::vector<float>& result : results) {
    EXPECT_EQ(
        std::memcmp(result.data(), results[0].data(), kSize * sizeof(float)),
        0);
  }
}

TEST_P(MeshCollectiveTest, OperationsInFlightMayBeAwaitedInAnyOrder) {
  constexpr int kWorldSize = 3;
  const auto group = CreateGroup(kWorldSize, absl::Seconds(60));
  const std::vector<size_t> sizes = {70000, 1, 0, 512, 1 << 18, 7, 40000};
  OnAllRanks(kWorldSize, [&](int rank) {
    std::vector<std::vector<float>> data;
    std::vector<Collective::Ticket> tickets;
    for (const size_t size : sizes) data.push_back(WholeNumbers(rank, size));
    for (std::vector<float>& buffer : data) {
      tickets.push_back(group[rank]->AllReduceAsync(absl::MakeSpan(buffer)));
    }
    for (size_t n = sizes.size(); n > 0; --n) {
      // Each rank begins somewhere else.
      const size_t i = (n + rank) % sizes.size();
      EXPECT_EQ(group[rank]->Wait(tickets[i]), absl::OkStatus());
      EXPECT_TRUE(data[i] == SumOfWholeNumbers(kWorldSize, sizes[i]));
    }
  });
}

absl::Span<float> AsFloats(std::vector<uint32_t>& bits) {
  return absl::MakeSpan(reinterpret_cast<float*>(bits.data()), bits.size());
}

TEST_P(MeshCollectiveSum, EveryRankGetsTheBitsOfTheRootForAnySizeAndRoot) {
  const int world_size = this->world_size();
  const auto group = CreateGroup();
  // The last two are sent in one piece and a bit, and in several.
  for (const size_t size : {size_t{0}, size_t{1}, size_t{7}, size_t{1000},
                            (size_t{1} << 18) + 1, size_t{1500000}}) {
    for (int root = 0; root < world_size; ++root) {
      OnAllRanks(world_size, [&](int rank) {
        std::vector<uint32_t> data = AnyBits(rank, size);
        if (rank != root) std::fill(data.begin(), data.end(), rank);
        EXPECT_EQ(group[rank]->Wait(
                      group[rank]->BroadcastAsync(AsFloats(data), Rank{root})),
                  absl::OkStatus());
        EXPECT_TRUE(data == AnyBits(root, size))
            << "rank " << rank << ", root " << root << ", size " << size;
      });
    }
  }
}

TEST_P(MeshCollectiveTest, BroadcastsAndAllReducesInFlightKeepTheirOrder) {
  constexpr int kWorldSize = 3;
  constexpr size_t kSize = 300000;
  const auto group = CreateGroup(kWorldSize, absl::Seconds(60));
  OnAllRanks(kWorldSize, [&](int rank) {
    // Rank 2 has 3 x n. All have 9 x n after the sum of what it has sent.
    std::vector<float> data = WholeNumbers(rank, kSize);
    const auto span = absl::MakeSpan(data);
    group[rank]->BroadcastAsync(span, Rank{2});
    group[rank]->AllReduceAsync(span);
    const auto last = group[rank]->BroadcastAsync(span, Rank{0});
    EXPECT_EQ(group[rank]->Wait(last), absl::OkStatus());
    EXPECT_TRUE(data == WholeNumbers(8, kSize));
  });
}

TEST_P(MeshCollectiveTest, ABroadcastWhoseRootHasLeftNamesIt) {
  constexpr int kWorldSize = 4;
  auto group = CreateGroup(kWorldSize, kEndless);
  std::vector<absl::Status> statuses(kWorldSize);
  OnAllRanks(kWorldSize, [&](int rank) {
    if (rank == 1) {
      group[1].reset();
      return;
    }
    std::vector<float> data(1000000, 1);
    statuses[rank] = group[rank]->Wait(
        group[rank]->BroadcastAsync(absl::MakeSpan(data), Rank{1}));
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable)
        << statuses[rank];
  });
  EXPECT_THAT(
      (std::vector<std::string>{Message(statuses[0]), Message(statuses[2]),
                                Message(statuses[3])}),
      Contains(ContainsRegex("lost the connection to ranks? [0-9, ]*1")));
}

TEST_P(MeshCollectiveTest, ABroadcastWhoseRootStaysAwayNamesItAfterTheTimeout) {
  auto group = CreateGroup(2, absl::Seconds(2));
  std::vector<float> data(1000, 1);
  const absl::Status status =
      group[0]->Wait(group[0]->BroadcastAsync(absl::MakeSpan(data), Rank{1}));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr("broadcast 0 on rank 0 of 2: rank 1 "
                                         "sent nothing for 2000 ms"));
}

TEST_P(MeshCollectiveTest, AWorldOfOneNeedsNoStoreAndNoHost) {
  GroupOptions options = OptionsOf(0, 1, kEndless, nullptr);
  options.host = "";
  auto collective = Create(options);
  ASSERT_TRUE(collective.ok()) << collective.status();
  std::vector<float> data = {1, 2, 3};
  EXPECT_EQ(AllReduce(**collective, data), absl::OkStatus());
  EXPECT_THAT(data, ::testing::ElementsAre(1, 2, 3));
  (*collective)->Abort(absl::CancelledError("enough"));
  EXPECT_EQ(AllReduce(**collective, data), absl::CancelledError("enough"));
}

TEST_P(MeshCollectiveTest, LeavingAfterTheLastOperationDoesNotHurtTheOthers) {
  constexpr int kWorldSize = 4;
  constexpr size_t kSize = 1 << 17;
  const std::vector<float> sum = SumOfWholeNumbers(kWorldSize, kSize);
  for (int round = 0; round < 20; ++round) {
    auto group = CreateGroup(kWorldSize, kEndless);
    OnAllRanks(kWorldSize, [&](int rank) {
      std::vector<float> data = WholeNumbers(rank, kSize);
      const auto ticket = group[rank]->AllReduceAsync(absl::MakeSpan(data));
      EXPECT_EQ(group[rank]->Wait(ticket), absl::OkStatus());
      group[rank].reset();
      EXPECT_TRUE(data == sum) << "rank " << rank;
    });
  }
}

TEST_P(MeshCollectiveTest, ARankThatLeavesFailsTheOperationsOfTheOthers) {
  constexpr int kWorldSize = 4;
  auto group = CreateGroup(kWorldSize, kEndless);
  std::vector<absl::Status> statuses(kWorldSize);
  OnAllRanks(kWorldSize, [&](int rank) {
    if (rank == 2) {
      group[2].reset();
      return;
    }
    std::vector<float> data(100000, 1);
    statuses[rank] = AllReduce(*group[rank], data);
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable)
        << statuses[rank];
    EXPECT_THAT(Message(statuses[rank]),
                HasSubstr(absl::StrCat("rank ", rank, " of 4: lost the ",
                                       "connection to rank")));
    // From now on always the same.
    EXPECT_EQ(AllReduce(*group[rank], data), statuses[rank]);
  });
  // Others may have seen only that a rank which noticed earlier gave up; the
  // first to notice has seen rank 2.
  EXPECT_THAT(
      (std::vector<std::string>{Message(statuses[0]), Message(statuses[1]),
                                Message(statuses[3])}),
      Contains(ContainsRegex("lost the connection to ranks? [0-9, ]*2")));
}

TEST_P(MeshCollectiveTest, DestroyedWithOperationsInFlightItEndsAtOnce) {
  auto group = CreateGroup(2, kEndless);
  std::vector<float> first(1 << 20, 1);
  std::vector<float> second(10, 1);
  group[0]->AllReduceAsync(absl::MakeSpan(first));
  group[0]->AllReduceAsync(absl::MakeSpan(second));
  group[0].reset();
  std::vector<float> data(1 << 20, 1);
  EXPECT_EQ(AllReduce(*group[1], data).code(), absl::StatusCode::kUnavailable);
}

TEST_P(MeshCollectiveTest, AbortWakesUpWhoWaitsAndFailsTheOtherRanks) {
  auto group = CreateGroup(2, kEndless);
  const absl::Status reason = absl::UnavailableError("worker 1 is dead");
  std::vector<float> data(1000, 1);
  const auto ticket = group[0]->AllReduceAsync(absl::MakeSpan(data));
  std::thread coordinator([&] { group[0]->Abort(reason); });
  EXPECT_EQ(group[0]->Wait(ticket), reason);
  coordinator.join();
  group[0]->Abort(absl::InternalError("too late to matter"));
  EXPECT_EQ(AllReduce(*group[0], data), reason);

  // Rank 0 may have given its part of the first one before: then that is done.
  absl::Status other = AllReduce(*group[1], data);
  if (other.ok()) other = AllReduce(*group[1], data);
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(other), HasSubstr("lost the connection to rank 0"));
}

TEST_P(MeshCollectiveTest, AbortWithoutAnOperationFailsTheNextOneOnEveryRank) {
  auto group = CreateGroup(3, kEndless);
  const absl::Status reason = absl::CancelledError("mode change");
  group[1]->Abort(reason);
  OnAllRanks(3, [&](int rank) {
    std::vector<float> data(10, 1);
    const absl::Status status = AllReduce(*group[rank], data);
    if (rank == 1) {
      EXPECT_EQ(status, reason);
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    }
  });
}

// The memory is freed as soon as Wait() has returned, while the neighbours
// still send.
TEST_P(MeshCollectiveTest, AbortWhileDataFlowsLeavesBuffersAlone) {
  constexpr int kWorldSize = 3;
  for (int round = 0; round < 8; ++round) {
    auto group = CreateGroup(kWorldSize, kEndless);
    OnAllRanks(kWorldSize, [&](int rank) {
      absl::Status status;
      for (int step = 0; status.ok(); ++step) {
        std::vector<float> first(300000, 1);
        std::vector<float> second(900000, 1);
        const auto first_ticket =
            group[rank]->AllReduceAsync(absl::MakeSpan(first));
        const auto second_ticket =
            group[rank]->AllReduceAsync(absl::MakeSpan(second));
        status = group[rank]->Wait(first_ticket);
        if (rank == 0 && step == round / 2) {
          group[0]->Abort(absl::CancelledError("enough"));
        }
        status.Update(group[rank]->Wait(second_ticket));
      }
      EXPECT_EQ(status.code(), rank == 0 ? absl::StatusCode::kCancelled
                                         : absl::StatusCode::kUnavailable)
          << status;
    });
  }
}

TEST_P(MeshCollectiveTest, ARankThatStaysAwayIsNamedAfterTheTimeout) {
  auto group = CreateGroup(2, absl::Seconds(2));
  std::vector<float> data(1000, 1);
  const absl::Status status = AllReduce(*group[0], data);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(Message(status), HasSubstr("all-reduce 0 on rank 0 of 2: rank 1 "
                                         "sent nothing for 2000 ms"));
}

TEST_P(MeshCollectiveTest, CreateNamesTheRanksThatDidNotArrive) {
  SharedMemoryStore store;
  OnAllRanks(2, [&](int rank) {
    GroupOptions options = OptionsOf(rank, 4, kEndless, &store);
    options.connect_timeout = absl::Milliseconds(500);
    const absl::Status status = Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("ranks 2, 3 of 4 did not arrive within 500 ms"));
  });
}

TEST_P(MeshCollectiveTest, CreateReturnsTheErrorOfTheStore) {
  class DeadStore final : public RendezvousStore {
    absl::Status Put(const std::string&, std::string) override {
      return absl::OkStatus();
    }
    absl::StatusOr<std::string> Get(const std::string&,
                                    absl::Duration) override {
      return absl::AbortedError("worker 2 was declared dead");
    }
  };
  DeadStore store;
  const absl::Status status =
      Create(OptionsOf(0, 3, kEndless, &store)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(status), HasSubstr("worker 2 was declared dead"));
}

TEST_P(MeshCollectiveTest, CreateRefusesImpossibleOptions) {
  SharedMemoryStore store;
  const auto message = [&](const GroupOptions& options) {
    const absl::Status status = Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return Message(status);
  };
  GroupOptions options = OptionsOf(0, 2, kEndless, &store);
  options.world_size = 0;
  EXPECT_THAT(message(options), HasSubstr("world_size: value is too small"));
  options = OptionsOf(2, 2, kEndless, &store);
  EXPECT_THAT(message(options), HasSubstr("rank: value 2 is outside [0, 2)"));
  options = OptionsOf(0, 2, absl::ZeroDuration(), &store);
  EXPECT_THAT(message(options), HasSubstr("timeout: value 0"));
  options = OptionsOf(0, 2, kEndless, &store);
  options.connect_timeout = absl::Hours(25);
  EXPECT_THAT(message(options),
              HasSubstr("connect_timeout: value 25h is outside [1 ms, 24 h]"));
  options = OptionsOf(0, 2, kEndless, nullptr);
  EXPECT_THAT(message(options), HasSubstr("store: "));
  options = OptionsOf(0, 2, kEndless, &store);
  if (GetParam() == Over::kSharedMemory) return;
  options.host = "";
  EXPECT_THAT(message(options), HasSubstr("host: it is empty"));
  options.host = "0.0.0.0";
  EXPECT_THAT(message(options), HasSubstr("wildcard \"0.0.0.0\""));
  options.host = std::string(300, 'x');  // Too long for any name service.
  EXPECT_THAT(message(options), HasSubstr("no known name or address"));
}

TEST(TcpCollective, CreateNamesAHostThatIsNotThisMachine) {
  SharedMemoryStore store;
  GroupOptions options = OptionsOf(0, 2, kEndless, &store);
  options.host = "192.0.2.1";  // Reserved for documentation, RFC 5737.
  const absl::Status status = CreateTcpCollective(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr("cannot listen on \"192.0.2.1\""));
}

// A rank that has stored its addresses and then died, before it connected.
void MeshCollectiveTest::StoreAddressesAndDie(GroupOptions options) const {
  const pid_t victim = Fork([&] {
    options.keep_trying = []() -> absl::Status {
      raise(SIGKILL);
      return absl::OkStatus();
    };
    return Create(options).ok() ? 0 : 1;
  });
  ASSERT_EQ(ExitCode(victim), 128 + SIGKILL);
}

// Whether this rank awaits a connection of the other or opens it is up to the
// ports, so both happen in these rounds: the former would wait forever.
constexpr int kRounds = 6;

TEST_P(MeshCollectiveTest, CreateNamesARankThatArrivedAndDiedWithinItsTimeout) {
  for (int round = 0; round < kRounds; ++round) {
    SharedMemoryStore store;
    StoreAddressesAndDie(OptionsOf(1, 2, kEndless, &store));
    GroupOptions options = OptionsOf(0, 2, kEndless, &store);
    options.connect_timeout = absl::Milliseconds(200);
    const absl::Status status = Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("rank 0 of 2 has no connection to rank 1"));
  }
}

TEST_P(MeshCollectiveTest, CreateEndsWhenToldToWhileARankIsMissing) {
  SharedMemoryStore store;
  GroupOptions options = OptionsOf(0, 2, kEndless, &store);
  int calls = 0;
  options.keep_trying = [&] {
    return ++calls < 3 ? absl::OkStatus()
                       : absl::AbortedError("worker 1 is dead");
  };
  const absl::Status status = Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_THAT(Message(status), HasSubstr("worker 1 is dead"));
  EXPECT_EQ(calls, 3);
}

size_t FilesIn(const char* folder) {
  using Iterator = std::filesystem::directory_iterator;
  return static_cast<size_t>(std::distance(Iterator(folder), Iterator()));
}

TEST_P(MeshCollectiveTest,
       CreateEndsWhenToldToWhileItConnectsAndLeavesNothing) {
  const size_t files = FilesIn("/proc/self/fd");
  const size_t threads = FilesIn("/proc/self/task");
  for (int round = 0; round < kRounds; ++round) {
    SharedMemoryStore store;
    StoreAddressesAndDie(OptionsOf(1, 2, kEndless, &store));
    GroupOptions options = OptionsOf(0, 2, kEndless, &store);
    // The first call is before the addresses are read.
    int calls = 0;
    options.keep_trying = [&] {
      return ++calls < 4 ? absl::OkStatus()
                         : absl::AbortedError("worker 1 is dead");
    };
    const absl::Status status = Create(options).status();
    if (absl::IsUnavailable(status)) {
      EXPECT_THAT(Message(status), HasSubstr("no connection to rank 1"));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_EQ(calls, 4);
    }
    EXPECT_EQ(FilesIn("/proc/self/fd"), files) << "round " << round;
    // A thread that was joined is listed a little longer.
    while (FilesIn("/proc/self/task") > threads) std::this_thread::yield();
  }
}

TEST_P(MeshCollectiveTest, SurvivorsOfAFailedCreateFormASmallerGroup) {
  for (int round = 0; round < kRounds; ++round) {
    SharedMemoryStore store;
    StoreAddressesAndDie(OptionsOf(1, 3, kEndless, &store));
    const std::vector<float> sum = SumOfWholeNumbers(2, 100000);
    OnAllRanks(2, [&](int survivor) {
      GroupOptions options = OptionsOf(2 * survivor, 3, kEndless, &store);
      // As if the coordinator told only now.
      int calls = 0;
      options.keep_trying = [&] {
        return ++calls < 5 ? absl::OkStatus()
                           : absl::AbortedError("worker 1 is dead");
      };
      EXPECT_FALSE(Create(options).ok());

      options = OptionsOf(survivor, 2, kEndless, &store);
      options.group = "smaller";
      const auto group = Create(options);
      ASSERT_TRUE(group.ok()) << group.status();
      std::vector<float> data = WholeNumbers(survivor, 100000);
      EXPECT_EQ(AllReduce(**group, data), absl::OkStatus());
      EXPECT_TRUE(data == sum);
    });
  }
}

// A store in which rank 1 has stored what it has in another one: its ports
// belong to a rank of another group now.
class StoreOfReusedPorts final : public RendezvousStore {
 public:
  explicit StoreOfReusedPorts(RendezvousStore* other) : other_(other) {}
  absl::Status Put(const std::string& key, std::string value) override {
    return own_.Put(key, std::move(value));
  }
  absl::StatusOr<std::string> Get(const std::string& key,
                                  absl::Duration time_max) override {
    return (key.ends_with("/1") ? *other_ : own_).Get(key, time_max);
  }

 private:
  SharedMemoryStore own_;
  RendezvousStore* const other_;
};

TEST(TcpCollective, ARankDoesNotJoinTheGroupThatHasThePortsOfALostOne) {
  SharedMemoryStore store;
  StoreOfReusedPorts stranger_store(&store);
  std::atomic<bool> over = false;
  OnAllRanks(3, [&](int who) {
    if (who == 2) {
      const absl::Status status =
          CreateTcpCollective(OptionsOf(0, 2, kEndless, &stranger_store))
              .status();
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_THAT(Message(status), HasSubstr("rank 0 of 2 has no connection to "
                                             "rank 1 (another process has its "
                                             "port)"));
      over = true;
      return;
    }
    // Rank 1 awaits rank 0, which listens, and answers nobody.
    GroupOptions options = OptionsOf(who, 2, kEndless, &store);
    options.keep_trying = [&] {
      while (who == 0 && !over) std::this_thread::yield();
      return over ? absl::AbortedError("over") : absl::OkStatus();
    };
    EXPECT_FALSE(CreateTcpCollective(options).ok());
  });
}

TEST(TcpCollective, WhoIsNotOfTheGroupDoesNotKeepItFromForming) {
  SharedMemoryStore store;
  std::unique_ptr<Collective> first;
  std::thread rank_0([&] {
    auto created = CreateTcpCollective(OptionsOf(0, 2, kEndless, &store));
    ASSERT_TRUE(created.ok()) << created.status();
    first = *std::move(created);
  });
  // Its entry ends in the port and the address.
  const auto entry = store.Get("test/0", kEndless);
  ASSERT_TRUE(entry.ok()) << entry.status();
  const std::vector<std::string> words = absl::StrSplit(*entry, ' ');
  ASSERT_EQ(words.size(), 3);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(words[1])));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // More than are kept at a time: silent ones, such that say too little, and
  // such that say something else.
  std::vector<Descriptor> strangers;
  for (size_t i = 0; i < 200; ++i) {
    const Descriptor& stranger =
        strangers.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_EQ(
        connect(stranger.get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)),
        0);
    const std::string said(i % 3 == 0 ? 0 : i % 3 == 1 ? 5 : 1000, 'G');
    send(stranger.get(), said.data(), said.size(), MSG_NOSIGNAL);
  }
  const auto second = CreateTcpCollective(OptionsOf(1, 2, kEndless, &store));
  rank_0.join();
  ASSERT_TRUE(second.ok()) << second.status();
  ASSERT_THAT(first, NotNull());
  std::vector<std::vector<float>> data(2, std::vector<float>(1000, 1));
  const auto ticket = first->AllReduceAsync(absl::MakeSpan(data[0]));
  EXPECT_EQ(AllReduce(**second, data[1]), absl::OkStatus());
  EXPECT_EQ(first->Wait(ticket), absl::OkStatus());
  EXPECT_THAT(data, Each(Each(2.0f)));
}

TEST_P(MeshCollectiveTest, AKilledProcessFailsTheOperationOfEveryOtherRank) {
  SharedMemoryStore store;
  const auto join = [&](int rank) {
    auto collective = Create(OptionsOf(rank, 3, kEndless, &store));
    SL_CHECK(collective.ok(), Message(collective.status()));
    std::vector<float> data(10, 1);
    const absl::Status status = AllReduce(**collective, data);
    SL_CHECK(status.ok(), Message(status));
    return *std::move(collective);
  };
  // Once rank 0 has done this, the others have done what came before.
  const auto second = [](Collective& collective) {
    std::vector<float> data(10, 1);
    return AllReduce(collective, data);
  };
  const pid_t victim = Fork([&] {
    const auto collective = join(1);
    (void)second(*collective);
    for (;;) pause();
    return 0;
  });
  const pid_t survivor = Fork([&] {
    const auto collective = join(2);
    absl::Status status = second(*collective);
    std::vector<float> data(1 << 20, 1);
    if (status.ok()) status = AllReduce(*collective, data);
    return absl::IsUnavailable(status) ? 0 : 1;
  });
  const auto collective = join(0);
  EXPECT_EQ(second(*collective), absl::OkStatus());
  std::vector<float> data(1 << 20, 1);
  const auto ticket = collective->AllReduceAsync(absl::MakeSpan(data));
  kill(victim, SIGKILL);
  const absl::Status status = collective->Wait(ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr("lost the connection to rank"));
  EXPECT_EQ(ExitCode(victim), 128 + SIGKILL);
  EXPECT_EQ(ExitCode(survivor), 0);
}

TEST_P(MeshCollectiveTest, ARankNoticesAKilledProcessThatIsNoNeighbour) {
  // Rank 0 waits for its neighbours 1 and 3, which are stopped.
  SharedMemoryStore store;
  const auto create = [&](int rank) {
    auto collective = Create(OptionsOf(rank, 4, kEndless, &store));
    SL_CHECK(collective.ok(), Message(collective.status()));
    return *std::move(collective);
  };
  std::vector<pid_t> processes(4);
  for (int rank = 1; rank < 4; ++rank) {
    processes[rank] = Fork([&, rank] {
      const auto collective = create(rank);
      for (;;) pause();
      return 0;
    });
  }
  const auto collective = create(0);
  for (const int rank : {1, 3}) {
    kill(processes[rank], SIGSTOP);
    int state = 0;
    waitpid(processes[rank], &state, WUNTRACED);
    ASSERT_TRUE(WIFSTOPPED(state));
  }
  std::vector<float> data(1000, 1);
  const auto ticket = collective->AllReduceAsync(absl::MakeSpan(data));
  kill(processes[2], SIGKILL);
  const absl::Status status = collective->Wait(ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(Message(status), HasSubstr("lost the connection to rank 2: "));
  for (const int rank : {1, 3}) kill(processes[rank], SIGKILL);
  for (const int rank : {1, 2, 3}) {
    EXPECT_EQ(ExitCode(processes[rank]), 128 + SIGKILL);
  }
}

// Killed anywhere in a transfer.
TEST_P(MeshCollectiveTest, AProcessKilledWhileDataFlowsFailsEveryOtherRank) {
  for (int round = 0; round < 4; ++round) {
    SharedMemoryStore store;
    const auto reduce_until_failure = [&](int rank,
                                          std::function<void(int)> on_step) {
      auto collective = Create(OptionsOf(rank, 3, kEndless, &store));
      SL_CHECK(collective.ok(), Message(collective.status()));
      absl::Status status;
      for (int step = 0; status.ok(); ++step) {
        std::vector<float> data(400000 + 100000 * round, 1);
        const auto ticket = (*collective)->AllReduceAsync(absl::MakeSpan(data));
        on_step(step);
        status = (*collective)->Wait(ticket);
      }
      return status;
    };
    const pid_t victim =
        Fork([&] { return reduce_until_failure(1, [](int) {}).ok() ? 0 : 1; });
    const pid_t survivor = Fork([&] {
      return absl::IsUnavailable(reduce_until_failure(2, [](int) {})) ? 0 : 1;
    });
    const absl::Status status = reduce_until_failure(0, [&](int step) {
      if (step == 3) kill(victim, SIGKILL);
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ExitCode(victim), 128 + SIGKILL);
    EXPECT_EQ(ExitCode(survivor), 0);
  }
}

}  // namespace slackline::mesh_collective_test
