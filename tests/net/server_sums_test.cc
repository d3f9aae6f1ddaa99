// Sums by servers: real shard threads, ranks as threads of this process, over
// tcp and through shared memory, beside an all-reduce over tcp.
#include "worker/collective/server_sums.h"

#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/net/host_id.h"
#include "common/net/shm/shm_transport.h"
#include "common/net/zmq/zmq_transport.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/control_endpoint.h"
#include "server/shard/shard_thread.h"
#include "tests/support/allreduce_view.h"
#include "tests/support/ranks.h"
#include "worker/collective/measure_lanes.h"
#include "worker/collective/tcp_collective.h"

namespace slackline::server_sums_test {

using ::testing::HasSubstr;

constexpr uint64_t kRun = 5;
constexpr uint64_t kGroup = 3;
constexpr absl::Duration kEndless = absl::Hours(1);

// The channels of another transport; tells when the first message has come.
class HeardTransport : public Transport {
 public:
  HeardTransport(Transport& others, std::function<void()> heard)
      : others_(others), heard_(std::move(heard)) {}

  absl::StatusOr<std::unique_ptr<Listener>> Listen(
      const ChannelOptions& options) override {
    return others_.Listen(options);
  }
  absl::StatusOr<std::unique_ptr<Channel>> Connect(
      const PeerId& self, const std::string& endpoint,
      const ChannelOptions& options) override {
    SL_ASSIGN_OR_RETURN(auto channel, others_.Connect(self, endpoint, options));
    return std::make_unique<HeardChannel>(std::move(channel), heard_);
  }
  std::vector<std::string> EndpointsAt(const Place& place) override {
    return others_.EndpointsAt(place);
  }
  std::shared_ptr<PayloadMemory> memory() override { return others_.memory(); }

 private:
  class HeardChannel : public Channel {
   public:
    HeardChannel(std::unique_ptr<Channel> inner, std::function<void()> heard)
        : inner_(std::move(inner)), heard_(std::move(heard)) {}
    absl::StatusOr<std::optional<Message>> Receive() override {
      auto message = inner_->Receive();
      if (message.ok() && message->has_value()) heard_();
      return message;
    }
    absl::Status Send(const Message& message) override {
      return inner_->Send(message);
    }
    absl::StatusOr<std::optional<LinkState>> ReceiveLinkState() override {
      return inner_->ReceiveLinkState();
    }
    ChannelCounts counts() const override { return inner_->counts(); }
    std::vector<int> Descriptors() const override {
      return inner_->Descriptors();
    }
    absl::StatusOr<absl::Duration> WaitMax() override {
      return inner_->WaitMax();
    }

   private:
    const std::unique_ptr<Channel> inner_;
    const std::function<void()> heard_;
  };

  Transport& others_;
  const std::function<void()> heard_;
};

// A server of one shard thread, without coordinator and control thread.
class SumServer {
 public:
  explicit SumServer(int index) {
    auto control = transport_.Listen({});
    SL_CHECK(control.ok() && (*control)->Bind(kControlEndpoint).ok(),
             "no control endpoint");
    control_ = *std::move(control);
    ShardThread::Options options;
    options.core.self = {.server = index, .thread = 0};
    options.host = "127.0.0.1";
    auto thread = ShardThread::Start(transport_, options, {});
    SL_CHECK(thread.ok(), thread.status().ToString());
    thread_ = *std::move(thread);
    member_.set_index(index);
    member_.set_host_id(HostId());
    *member_.add_thread() = thread_->endpoints();
  }
  const wire::ServerMember& member() const { return member_; }
  void Follow(std::shared_ptr<const View> view) {
    thread_->Follow(std::move(view));
  }

 private:
  ZmqTransport over_network_;
  ShmTransport transport_{over_network_};
  std::unique_ptr<Listener> control_;
  std::unique_ptr<ShardThread> thread_;
  wire::ServerMember member_;
};

class ServerSumsTest
    : public ::testing::TestWithParam<config::Limits::Transport> {
 protected:
  void StartServers(int count) {
    for (int i = 0; i < count; ++i)
      servers_.push_back(std::make_unique<SumServer>(i));
  }
  void ShowView(int ranks, uint64_t group = kGroup) {
    std::vector<wire::ServerMember> members;
    for (const auto& server : servers_) members.push_back(server->member());
    const auto view = AllReduceView(kRun, group, ranks, members);
    for (const auto& server : servers_) server->Follow(view);
  }
  ServerSumsOptions SumsOf(int rank, Transport* transport) const {
    ServerSumsOptions options = {.transport = transport,
                                 .via = GetParam(),
                                 .worker = rank,
                                 .incarnation = IncarnationOf(rank),
                                 .run = kRun,
                                 .group = kGroup};
    // Those that the first rank knows count.
    if (rank == 0) {
      for (const auto& server : servers_)
        options.servers.push_back(server->member());
    }
    return options;
  }
  // Runs for all ranks at once, each with its member of a group.
  void OnAllRanks(int ranks, absl::Duration timeout,
                  const std::function<void(int, Collective&)>& what) {
    SharedMemoryStore store;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        ZmqTransport over_network;
        ShmTransport through_memory(over_network);
        HeardTransport transport(through_memory, [this] {
          std::call_once(heard_once_, [this] { heard_.set_value(); });
        });
        GroupOptions options{.rank = Rank{rank},
                             .world_size = ranks,
                             .host = "127.0.0.1",
                             .group = "test",
                             .connect_timeout = kEndless,
                             .timeout = timeout,
                             .store = &store};
        options.sums = [&] { return MakeServerSums(SumsOf(rank, &transport)); };
        auto group = CreateTcpCollective(options);
        ASSERT_TRUE(group.ok()) << group.status();
        what(rank, **group);
        // Nobody leaves before the others are done.
        (void)store.Put(absl::StrCat("done/", rank), "");
        for (int other = 0; other < ranks; ++other)
          (void)store.Get(absl::StrCat("done/", other), kEndless);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<std::unique_ptr<SumServer>> servers_;
  std::once_flag heard_once_;
  std::promise<void> heard_;  // A server has answered some rank.
};

INSTANTIATE_TEST_SUITE_P(Over, ServerSumsTest,
                         ::testing::Values(config::Limits::TCP,
                                           config::Limits::SHM),
                         [](const auto& test) {
                           return config::Limits::Transport_Name(test.param);
                         });

TEST_P(ServerSumsTest, EveryRankGetsTheSumForAnySize) {
  constexpr int kRanks = 3;
  StartServers(2);
  ShowView(kRanks);
  OnAllRanks(kRanks, kEndless, [](int rank, Collective& group) {
    ASSERT_TRUE(group.has_servers());
    // None, less than a piece, a piece and some, more than the windows.
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{1000}, size_t{65537}, size_t{1} << 22}) {
      std::vector<float> data = WholeNumbers(rank, size);
      ASSERT_EQ(group.Wait(group.SumByServersAsync(absl::MakeSpan(data))),
                absl::OkStatus());
      EXPECT_TRUE(data == SumOfWholeNumbers(kRanks, size)) << size;
    }
  });
}

TEST_P(ServerSumsTest, BothWaysGoAtOnceAndAreWaitedForInAnyOrder) {
  constexpr int kRanks = 2;
  constexpr size_t kSize = 100000;
  StartServers(1);
  ShowView(kRanks);
  OnAllRanks(kRanks, kEndless, [](int rank, Collective& group) {
    std::vector<std::vector<float>> data;
    for (int i = 0; i < 6; ++i) data.push_back(WholeNumbers(rank, kSize));
    std::vector<Collective::Ticket> tickets;
    for (int i = 0; i < 6; ++i) {
      const absl::Span<float> span = absl::MakeSpan(data[i]);
      tickets.push_back(i % 2 == 0 ? group.AllReduceAsync(span)
                                   : group.SumByServersAsync(span));
    }
    for (int i = 5; i >= 0; --i) {
      ASSERT_EQ(group.Wait(tickets[i]), absl::OkStatus());
      EXPECT_TRUE(data[i] == SumOfWholeNumbers(kRanks, kSize)) << i;
    }
  });
}

TEST_P(ServerSumsTest, ItWaitsForAServerThatSeesTheGroupLater) {
  constexpr int kRanks = 2;
  StartServers(1);
  ShowView(kRanks, kGroup - 1);
  OnAllRanks(kRanks, kEndless, [&](int rank, Collective& group) {
    std::vector<float> data = WholeNumbers(rank, 1000);
    const auto ticket = group.SumByServersAsync(absl::MakeSpan(data));
    if (rank == 0) {
      // It cannot have summed: it asks to come again.
      EXPECT_EQ(heard_.get_future().wait_for(std::chrono::seconds(30)),
                std::future_status::ready);
      ShowView(kRanks);
    }
    ASSERT_EQ(group.Wait(ticket), absl::OkStatus());
    EXPECT_TRUE(data == SumOfWholeNumbers(kRanks, 1000));
  });
}

TEST_P(ServerSumsTest, AGroupThatIsOverFailsWithTheReason) {
  constexpr int kRanks = 2;
  StartServers(1);
  ShowView(kRanks, kGroup + 1);
  OnAllRanks(kRanks, kEndless, [&](int rank, Collective& group) {
    std::vector<float> data = WholeNumbers(rank, 1000);
    const absl::Status status =
        group.Wait(group.SumByServersAsync(absl::MakeSpan(data)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    // One of them may notice the other's end first.
    if (!absl::StrContains(status.message(), "lost the connection")) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("server 0 thread 0 does not sum: group 3 is over"));
    }
    // And with it everything else.
    EXPECT_EQ(group.Wait(group.AllReduceAsync(absl::MakeSpan(data))), status);
  });
}

TEST_P(ServerSumsTest, AServerThatHasEndedIsNamed) {
  constexpr int kRanks = 2;
  StartServers(2);
  ShowView(kRanks);
  OnAllRanks(kRanks, kEndless, [&](int rank, Collective& group) {
    std::vector<float> data = WholeNumbers(rank, 1 << 18);
    ASSERT_EQ(group.Wait(group.SumByServersAsync(absl::MakeSpan(data))),
              absl::OkStatus());
    // Both are done with it before it goes.
    ASSERT_EQ(group.Wait(group.AllReduceAsync(absl::MakeSpan(data))),
              absl::OkStatus());
    if (rank == 0) servers_.pop_back();
    ASSERT_EQ(group.Wait(group.AllReduceAsync(absl::MakeSpan(data))),
              absl::OkStatus());
    const absl::Status status =
        group.Wait(group.SumByServersAsync(absl::MakeSpan(data)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    if (absl::StrContains(status.message(), "lost the connection")) return;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("server 1 thread 0 has ended"));
  });
}

TEST_P(ServerSumsTest, WhoHasNotAnsweredIsNamed) {
  constexpr int kRanks = 2;
  StartServers(1);
  ShowView(kRanks);
  OnAllRanks(kRanks, absl::Milliseconds(300), [&](int rank, Collective& group) {
    if (rank == 1) return;  // Takes no part, and stays until the end.
    std::vector<float> data = WholeNumbers(rank, 1000);
    const absl::Status status =
        group.Wait(group.SumByServersAsync(absl::MakeSpan(data)));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("no sum came for 300 ms from server 0 thread 0"));
  });
}

TEST_P(ServerSumsTest, ALostRankEndsTheSumOfTheOthers) {
  constexpr int kRanks = 3;
  StartServers(1);
  ShowView(kRanks);
  OnAllRanks(kRanks, kEndless, [&](int rank, Collective& group) {
    if (rank == 2) {
      group.Abort(absl::CancelledError("enough"));
      return;
    }
    std::vector<float> data = WholeNumbers(rank, 1000);
    const absl::Status status =
        group.Wait(group.SumByServersAsync(absl::MakeSpan(data)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  });
}

TEST_P(ServerSumsTest, AllRanksMeasureTheSame) {
  constexpr int kRanks = 3;
  StartServers(1);
  ShowView(kRanks);
  std::vector<LaneCosts> costs(kRanks);
  OnAllRanks(kRanks, kEndless, [&](int rank, Collective& group) {
    const absl::StatusOr<LaneCosts> measured = MeasureLanes(group);
    ASSERT_TRUE(measured.ok()) << measured.status();
    costs[rank] = *measured;
  });
  for (const LaneCosts& of_rank : costs) {
    EXPECT_GT(of_rank.ranks, 0);
    EXPECT_GT(of_rank.servers, 0);
    EXPECT_EQ(of_rank.ranks, costs[0].ranks);
    EXPECT_EQ(of_rank.servers, costs[0].servers);
  }
}

}  // namespace slackline::server_sums_test
