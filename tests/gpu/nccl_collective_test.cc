// Ranks are processes, for NCCL and CUDA do not survive a fork after their
// first use: this one uses neither. All ranks are on GPU 0, which NCCL allows
// only if it takes them for different machines (NCCL_HOSTID), so they talk
// through sockets.
#include "worker/collective/nccl_collective.h"

#include <signal.h>
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/gpu.h"
#include "tests/support/ranks.h"

namespace slackline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kEndless = absl::Hours(1);

NcclCollective::Options OptionsOf(int rank, int world_size,
                                  RendezvousStore* store) {
  return {.rank = Rank{rank},
          .world_size = world_size,
          .group = "test",
          .connect_timeout = kEndless,
          .timeout = kEndless,
          .store = store};
}

void Check(const absl::Status& status) {
  SL_CHECK(status.ok(), std::string(status.message()));
}

void Check(cudaError_t error, const char* call) {
  Check(CudaStatus(error, call));
}

// What one rank has, in its process.
class RankOnGpu {
 public:
  RankOnGpu() { Check(cudaStreamCreate(&stream_), "cudaStreamCreate"); }

  // Options: the rest, and the stream is set here.
  std::unique_ptr<NcclCollective> Create(NcclCollective::Options options) {
    options.stream = stream_;
    auto collective = NcclCollective::Create(options);
    Check(collective.status());
    return *std::move(collective);
  }

  // Runs an operation on `values`. All but the wait for the collective is put
  // on the computation's stream, without waiting for it, until the result is
  // here.
  template <typename Value>
  absl::Status Run(NcclCollective& collective, std::vector<Value>& values,
                   std::optional<Rank> root) {
    static_assert(sizeof(Value) == sizeof(float));
    const size_t bytes = values.size() * sizeof(Value);
    void* pinned = nullptr;
    void* device = nullptr;
    Check(cudaMallocHost(&pinned, bytes + 1), "cudaMallocHost");
    Check(cudaMalloc(&device, bytes + 1), "cudaMalloc");
    std::memcpy(pinned, values.data(), bytes);
    Check(cudaMemsetAsync(device, 0xff, bytes, stream_), "memset");
    Check(
        cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, stream_),
        "copy to the GPU");
    const absl::Span<float> data(static_cast<float*>(device), values.size());
    const auto ticket = root.has_value()
                            ? collective.BroadcastAsync(data, *root)
                            : collective.AllReduceAsync(data);
    absl::Status status = collective.Wait(ticket);
    Check(
        cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream_),
        "copy from the GPU");
    Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::memcpy(values.data(), pinned, bytes);
    Check(cudaFree(device), "cudaFree");
    Check(cudaFreeHost(pinned), "cudaFreeHost");
    return status;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

pid_t ForkRank(int rank, const std::function<void()>& rank_main) {
  return Fork([&] {
    SL_CHECK(setenv("NCCL_HOSTID", absl::StrCat("host", rank).c_str(), 1) == 0,
             "setenv failed");
    rank_main();
    return 0;
  });
}

// Runs `rank_main` for all ranks at once and expects success of each.
void OnAllRanks(int world_size, const std::function<void(int)>& rank_main) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < world_size; ++rank) {
    processes.push_back(ForkRank(rank, [&, rank] { rank_main(rank); }));
  }
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(ExitCode(processes[rank]), 0) << "rank " << rank;
  }
}

class NcclCollectiveTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const pid_t process = Fork([] {
      const std::string why = WhyNoGpu();
      std::fprintf(stderr, "%s\n", why.c_str());
      return why.empty() ? 0 : 1;
    });
    if (ExitCode(process) != 0) {
      GTEST_SKIP() << "no GPU to run on: CUDA finds none";
    }
  }
  SharedMemoryStore store_;
};

class NcclCollectiveSum : public NcclCollectiveTest,
                          public ::testing::WithParamInterface<int> {};

TEST_P(NcclCollectiveSum, EveryRankGetsTheSumForAnySize) {
  const int world_size = GetParam();
  OnAllRanks(world_size, [&](int rank) {
    RankOnGpu gpu;
    const auto collective = gpu.Create(OptionsOf(rank, world_size, &store_));
    for (const size_t size :
         {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{1} << 20}) {
      std::vector<float> data = WholeNumbers(rank, size);
      Check(gpu.Run(*collective, data, std::nullopt));
      SL_CHECK(data == SumOfWholeNumbers(world_size, size),
               absl::StrCat("wrong sum of size ", size));
    }
  });
}

TEST_P(NcclCollectiveSum, EveryRankGetsTheBitsOfTheRoot) {
  const int world_size = GetParam();
  OnAllRanks(world_size, [&](int rank) {
    RankOnGpu gpu;
    const auto collective = gpu.Create(OptionsOf(rank, world_size, &store_));
    for (const size_t size : {size_t{1}, size_t{7}, size_t{300001}}) {
      for (int root = 0; root < world_size; ++root) {
        std::vector<uint32_t> data(size, 7);
        if (rank == root) data = AnyBits(root, size);
        Check(gpu.Run(*collective, data, Rank{root}));
        SL_CHECK(data == AnyBits(root, size),
                 absl::StrCat("wrong bits of rank ", root, ", size ", size));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NcclCollectiveSum,
                         ::testing::Values(2, 4));

TEST_F(NcclCollectiveTest, SurvivorsOfAKilledRankFormASmallerGroup) {
  std::vector<pid_t> processes;
  for (int rank = 0; rank < 3; ++rank) {
    processes.push_back(ForkRank(rank, [&, rank] {
      RankOnGpu gpu;
      NcclCollective::Options options = OptionsOf(rank, 3, &store_);
      options.timeout = absl::Seconds(20);
      auto collective = gpu.Create(options);
      std::vector<float> data = WholeNumbers(rank, 1000);
      Check(gpu.Run(*collective, data, std::nullopt));
      if (rank == 1) raise(SIGKILL);
      data = WholeNumbers(rank, 1 << 20);
      const absl::Status failed = gpu.Run(*collective, data, std::nullopt);
      SL_CHECK(absl::IsUnavailable(failed) || absl::IsDeadlineExceeded(failed),
               failed.ToString());
      SL_CHECK(gpu.Run(*collective, data, std::nullopt) == failed,
               "another failure follows the first");
      collective.reset();

      options = OptionsOf(rank / 2, 2, &store_);
      options.group = "smaller";
      collective = gpu.Create(options);
      data = WholeNumbers(rank / 2, 1 << 20);
      Check(gpu.Run(*collective, data, std::nullopt));
      SL_CHECK(data == SumOfWholeNumbers(2, 1 << 20), "wrong sum");
    }));
  }
  EXPECT_EQ(ExitCode(processes[0]), 0);
  EXPECT_EQ(ExitCode(processes[1]), 128 + SIGKILL);
  EXPECT_EQ(ExitCode(processes[2]), 0);
}

TEST_F(NcclCollectiveTest, AbortWakesUpWhoWaits) {
  OnAllRanks(2, [&](int rank) {
    RankOnGpu gpu;
    auto collective = gpu.Create(OptionsOf(rank, 2, &store_));
    if (rank == 1) {
      // Stays away until rank 0 is done.
      Check(store_.Get("done", kEndless).status());
      return;
    }
    const absl::Status reason = absl::CancelledError("worker 1 is dead");
    std::thread coordinator([&] { collective->Abort(reason); });
    std::vector<float> data(1000, 1);
    SL_CHECK(gpu.Run(*collective, data, std::nullopt) == reason,
             "not the status of the abort");
    coordinator.join();
    collective.reset();
    Check(store_.Put("done", ""));
  });
}

TEST_F(NcclCollectiveTest, ARankThatStaysAwayFailsTheOthersAfterTheTimeout) {
  OnAllRanks(2, [&](int rank) {
    RankOnGpu gpu;
    NcclCollective::Options options = OptionsOf(rank, 2, &store_);
    options.timeout = absl::Seconds(2);
    auto collective = gpu.Create(options);
    if (rank == 1) {
      Check(store_.Get("done", kEndless).status());
      return;
    }
    std::vector<float> data(1000, 1);
    const absl::Status status = gpu.Run(*collective, data, std::nullopt);
    SL_CHECK(absl::IsDeadlineExceeded(status), status.ToString());
    Check(store_.Put("done", ""));
  });
}

TEST_F(NcclCollectiveTest, CreateNamesTheRanksThatDidNotArrive) {
  OnAllRanks(1, [&](int) {
    NcclCollective::Options options = OptionsOf(0, 3, &store_);
    options.connect_timeout = absl::Milliseconds(200);
    const absl::Status status = NcclCollective::Create(options).status();
    SL_CHECK(absl::IsDeadlineExceeded(status), status.ToString());
    EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 1, 2 of 3"));
    SL_CHECK(!::testing::Test::HasFailure(), "see above");
  });
}

// Rank 1 dies when all have arrived, and NCCL waits for it without end.
TEST_F(NcclCollectiveTest, CreateEndsWhenToldToWhileItConnects) {
  const pid_t victim = ForkRank(1, [&] {
    NcclCollective::Options options = OptionsOf(1, 2, &store_);
    options.keep_trying = []() -> absl::Status {
      raise(SIGKILL);
      return absl::OkStatus();
    };
    (void)NcclCollective::Create(options);
  });
  EXPECT_EQ(ExitCode(victim), 128 + SIGKILL);
  const pid_t survivor = ForkRank(0, [&] {
    NcclCollective::Options options = OptionsOf(0, 2, &store_);
    int calls = 0;
    options.keep_trying = [&] {
      return ++calls < 100 ? absl::OkStatus()
                           : absl::AbortedError("worker 1 is dead");
    };
    const absl::Status status = NcclCollective::Create(options).status();
    SL_CHECK(absl::IsAborted(status), status.ToString());
  });
  EXPECT_EQ(ExitCode(survivor), 0);
}

// ---- Without a GPU

TEST(NcclCollective, AWorldOfOneNeedsNoGpuAndNoStore) {
  auto collective = NcclCollective::Create(OptionsOf(0, 1, nullptr));
  ASSERT_TRUE(collective.ok()) << collective.status();
  std::vector<float> data = {1, 2, 3};
  const auto span = absl::MakeSpan(data);
  EXPECT_EQ((*collective)->Wait((*collective)->AllReduceAsync(span)),
            absl::OkStatus());
  EXPECT_EQ((*collective)->Wait((*collective)->BroadcastAsync(span, Rank{0})),
            absl::OkStatus());
  EXPECT_THAT(data, ::testing::ElementsAre(1, 2, 3));
  (*collective)->Abort(absl::CancelledError("enough"));
  EXPECT_EQ((*collective)->Wait((*collective)->AllReduceAsync(span)),
            absl::CancelledError("enough"));
}

TEST(NcclCollective, CreateRefusesImpossibleOptions) {
  SharedMemoryStore store;
  const auto message = [](const NcclCollective::Options& options) {
    const absl::Status status = NcclCollective::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message(OptionsOf(0, 0, &store)), HasSubstr("world_size: "));
  EXPECT_THAT(message(OptionsOf(2, 2, &store)),
              HasSubstr("rank: value 2 is outside [0, 2)"));
  EXPECT_THAT(message(OptionsOf(0, 2, nullptr)), HasSubstr("store: "));
  NcclCollective::Options options = OptionsOf(0, 2, &store);
  options.timeout = absl::ZeroDuration();
  EXPECT_THAT(message(options), HasSubstr("timeout: value 0"));
  options = OptionsOf(0, 2, &store);
  options.connect_timeout = absl::ZeroDuration();
  EXPECT_THAT(message(options), HasSubstr("connect_timeout: value 0"));
}

TEST(NcclCollective, CreateNamesAGpuThatIsNotThere) {
  const pid_t process = Fork([] {
    SharedMemoryStore store;
    NcclCollective::Options options = OptionsOf(0, 2, &store);
    options.gpu = 1000;
    const absl::Status status = NcclCollective::Create(options).status();
    SL_CHECK(status.code() == absl::StatusCode::kFailedPrecondition,
             status.ToString());
    SL_CHECK(status.message().find("gpu 1000") != absl::string_view::npos,
             status.ToString());
    return 0;
  });
  EXPECT_EQ(ExitCode(process), 0);
}

TEST(NcclCollective, TheAlgorithmIsSetUnlessTheUserHasSetIt) {
  const pid_t process = Fork([] {
    const auto value = [] { return std::string(getenv("NCCL_ALGO")); };
    unsetenv("NCCL_ALGO");
    SetNcclAlgorithm(config::Collective::ANY);
    SL_CHECK(getenv("NCCL_ALGO") == nullptr, "ANY leaves the choice to NCCL");
    SetNcclAlgorithm(config::Collective::RING);
    SL_CHECK(value() == "Ring", value());
    SetNcclAlgorithm(config::Collective::TREE);  // Ring was set before.
    SL_CHECK(value() == "Ring", value());
    return 0;
  });
  EXPECT_EQ(ExitCode(process), 0);
}

}  // namespace
}  // namespace slackline
