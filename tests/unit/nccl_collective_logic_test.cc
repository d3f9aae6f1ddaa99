// What NcclCollective makes of NCCL, without a GPU: the program has functions
// of its own with the names of those of NCCL and the CUDA runtime that are
// used. Ranks are threads, and memory of the GPU is that of the host. An
// operation is done when all ranks have started it; all else on a stream is
// done at once.
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/ranks.h"
#include "worker/collective/nccl_collective.h"

// ---- NCCL and CUDA

namespace {

struct FakeOperation {
  std::vector<void*> buffers;
  bool done = false;
};

struct FakeGroup {
  int world_size = 0;
  int joined = 0;
  int finalized = 0;
  bool lost = false;  // A rank has aborted.
  std::vector<FakeOperation> operations;
};

// Of the fake NCCL, as the real one has: the functions have no other place.
std::mutex fake_mutex;
std::map<std::string, FakeGroup> fake_groups;  // By unique id.
int fake_ids = 0;
std::atomic<int> fake_communicators = 0;
// Losing a rank is an error at the others, as with sockets; else they see
// nothing, as inside a machine.
bool fake_tells_losses = true;

}  // namespace

struct ncclComm {
  FakeGroup* group;
  size_t operations = 0;
  int busy = 0;  // Next calls of ncclCommGetAsyncError that say so.
  bool finalized = false;
};
struct CUstream_st {
  // Not done by themselves: operation, and its group.
  std::vector<std::pair<FakeGroup*, size_t>> operations;
  bool aborted = false;

  bool DoneUpTo(size_t count) const {
    for (size_t i = 0; i < count && !aborted; ++i) {
      const auto& [group, index] = operations[i];
      if (!group->operations[index].done) return false;
    }
    return true;
  }
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  size_t count = 0;
};

namespace {

std::map<ncclComm*, CUstream_st*> fake_streams;  // That it has operations on.

ncclResult_t StartFake(ncclComm* comm, void* data, cudaStream_t stream,
                       const std::function<void(FakeOperation&)>& run) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  const size_t index = comm->operations++;
  auto& operations = comm->group->operations;
  if (operations.size() <= index) operations.emplace_back();
  operations[index].buffers.push_back(data);
  stream->operations.emplace_back(comm->group, index);
  fake_streams[comm] = stream;
  if (!comm->group->lost &&
      static_cast<int>(operations[index].buffers.size()) ==
          comm->group->world_size) {
    run(operations[index]);
    operations[index].done = true;
  }
  comm->busy = 3;
  return ncclInProgress;
}

}  // namespace

extern "C" {

const char* ncclGetErrorString(ncclResult_t) { return "an error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  std::memset(id, 0, sizeof(*id));
  std::snprintf(id->internal, sizeof(id->internal), "%d", ++fake_ids);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int world_size,
                                    ncclUniqueId id, int, ncclConfig_t*) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  FakeGroup& group = fake_groups[id.internal];
  group.world_size = world_size;
  ++group.joined;
  *comm = new ncclComm{.group = &group};
  ++fake_communicators;
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  const FakeGroup& group = *comm->group;
  const bool waits = group.joined < group.world_size || comm->busy > 0 ||
                     (comm->finalized && group.finalized < group.world_size);
  if (comm->busy > 0) --comm->busy;
  *state = waits ? ncclInProgress : ncclSuccess;
  if (group.lost && fake_tells_losses) *state = ncclRemoteError;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void*, void* data, size_t size, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t comm, cudaStream_t stream) {
  return StartFake(comm, data, stream, [size](FakeOperation& operation) {
    std::vector<float> sum(size, 0);
    for (void* const buffer : operation.buffers) {
      for (size_t i = 0; i < size; ++i) {
        sum[i] += static_cast<const float*>(buffer)[i];
      }
    }
    for (void* const buffer : operation.buffers) {
      if (size > 0) std::memcpy(buffer, sum.data(), size * sizeof(float));
    }
  });
}
// The root's buffer is the one whose first element is root + 1.
ncclResult_t ncclBroadcast(const void*, void* data, size_t size,
                           ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  SL_CHECK(type == ncclUint32, "bits are copied, not numbers");
  return StartFake(comm, data, stream, [=](FakeOperation& operation) {
    for (void* const from : operation.buffers) {
      if (size == 0 || *static_cast<const float*>(from) != root + 1) continue;
      for (void* const to : operation.buffers) {
        if (to != from) std::memcpy(to, from, size * sizeof(float));
      }
    }
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  ++comm->group->finalized;
  comm->finalized = true;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  fake_streams.erase(comm);
  delete comm;
  --fake_communicators;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::lock_guard<std::mutex> lock(fake_mutex);
    comm->group->lost = true;
    if (fake_streams.count(comm) > 0) fake_streams[comm]->aborted = true;
  }
  return ncclCommDestroy(comm);
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes,
                            cudaStream_t) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = *highest = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  return stream->DoneUpTo(stream->operations.size()) ? cudaSuccess
                                                     : cudaErrorNotReady;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr) return cudaSuccess;  // Of the computation.
  const std::lock_guard<std::mutex> lock(fake_mutex);
  *event = {.stream = stream, .count = stream->operations.size()};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard<std::mutex> lock(fake_mutex);
  // Aborted operations never get this far.
  return event->stream->DoneUpTo(event->count) ? cudaSuccess
                                               : cudaErrorNotReady;
}

}  // extern "C"

// ---- Tests

namespace slackline {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kEndless = absl::Hours(1);

class NcclCollectiveLogic : public ::testing::Test {
 protected:
  void SetUp() override { fake_tells_losses = true; }
  // Whatever happened, no communicator is left.
  void TearDown() override { EXPECT_EQ(fake_communicators, 0); }

  NcclCollective::Options OptionsOf(int rank, int world_size,
                                    const std::string& group = "test") {
    return {.rank = Rank{rank},
            .world_size = world_size,
            .group = group,
            .connect_timeout = kEndless,
            .timeout = kEndless,
            .store = &store_};
  }
  std::unique_ptr<NcclCollective> Create(
      const NcclCollective::Options& options) {
    auto collective = NcclCollective::Create(options);
    SL_CHECK(collective.ok(), std::string(collective.status().message()));
    return *std::move(collective);
  }

  SharedMemoryStore store_;
};

void OnAllRanks(int world_size, const std::function<void(int)>& rank_main) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&rank_main, rank] { rank_main(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

absl::Status AllReduce(Collective& collective, std::vector<float>& data) {
  return collective.Wait(collective.AllReduceAsync(absl::MakeSpan(data)));
}

TEST_F(NcclCollectiveLogic, OperationsInFlightMayBeAwaitedInAnyOrder) {
  constexpr int kWorldSize = 3;
  OnAllRanks(kWorldSize, [&](int rank) {
    const auto collective = Create(OptionsOf(rank, kWorldSize));
    EXPECT_EQ(collective->rank(), Rank{rank});
    EXPECT_EQ(collective->world_size(), kWorldSize);
    // More than once, so that events are used again.
    for (int round = 0; round < 5; ++round) {
      std::vector<std::vector<float>> data;
      std::vector<Collective::Ticket> tickets;
      for (const size_t size : {7, 0, 100}) {
        data.push_back(WholeNumbers(rank, size));
      }
      for (std::vector<float>& buffer : data) {
        tickets.push_back(collective->AllReduceAsync(absl::MakeSpan(buffer)));
      }
      for (int n = 3; n > 0; --n) {
        const int i = (n + rank) % 3;
        EXPECT_EQ(collective->Wait(tickets[i]), absl::OkStatus());
        EXPECT_EQ(data[i], SumOfWholeNumbers(kWorldSize, data[i].size()));
      }
    }
  });
}

TEST_F(NcclCollectiveLogic, EveryRankGetsWhatTheRootHas) {
  OnAllRanks(3, [&](int rank) {
    const auto collective = Create(OptionsOf(rank, 3));
    for (int root = 0; root < 3; ++root) {
      std::vector<float> data(10, static_cast<float>(rank + 1));
      EXPECT_EQ(collective->Wait(collective->BroadcastAsync(
                    absl::MakeSpan(data), Rank{root})),
                absl::OkStatus());
      EXPECT_EQ(data, std::vector<float>(10, static_cast<float>(root + 1)));
    }
  });
}

TEST_F(NcclCollectiveLogic, ARankThatStaysAwayFailsTheOthersAfterTheTimeout) {
  std::unique_ptr<NcclCollective> group[2];
  OnAllRanks(2, [&](int rank) {
    NcclCollective::Options options = OptionsOf(rank, 2);
    options.timeout = absl::Milliseconds(300);
    group[rank] = Create(options);
  });
  std::vector<float> data(10, 1);
  const absl::Status status = AllReduce(*group[0], data);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("operation 0 on rank 0 of 2 (GPU 0): not done after "
                        "300 ms"));
  EXPECT_EQ(AllReduce(*group[0], data), status);  // From now on.
  EXPECT_EQ(fake_communicators, 1);               // That of rank 1.
}

TEST_F(NcclCollectiveLogic, ALostRankFailsTheOthersAtOnce) {
  std::unique_ptr<NcclCollective> group[2];
  OnAllRanks(2, [&](int rank) { group[rank] = Create(OptionsOf(rank, 2)); });
  std::vector<float> data(10, 1);
  group[1]->AllReduceAsync(absl::Span<float>());
  group[1].reset();  // With an operation in flight, so it aborts.
  const absl::Status status = AllReduce(*group[0], data);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("lost the connection to a rank"));
}

TEST_F(NcclCollectiveLogic, AbortWakesUpWhoWaits) {
  std::unique_ptr<NcclCollective> group[2];
  OnAllRanks(2, [&](int rank) { group[rank] = Create(OptionsOf(rank, 2)); });
  const absl::Status reason = absl::CancelledError("worker 1 is dead");
  std::vector<float> data(10, 1);
  const auto ticket = group[0]->AllReduceAsync(absl::MakeSpan(data));
  std::thread coordinator([&] { group[0]->Abort(reason); });
  EXPECT_EQ(group[0]->Wait(ticket), reason);
  coordinator.join();
  group[0]->Abort(absl::InternalError("too late to matter"));
  EXPECT_EQ(AllReduce(*group[0], data), reason);
}

TEST_F(NcclCollectiveLogic, LeavingAfterTheLastOperationHurtsNobody) {
  std::vector<absl::Status> statuses(3);
  OnAllRanks(3, [&](int rank) {
    auto collective = Create(OptionsOf(rank, 3));
    std::vector<float> data(10, 1);
    statuses[rank] = AllReduce(*collective, data);
    collective.reset();
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status, absl::OkStatus());
  }
  // Nobody aborted.
  EXPECT_FALSE(fake_groups[std::to_string(fake_ids)].lost);
}

TEST_F(NcclCollectiveLogic, CreateNamesTheRanksThatDidNotArrive) {
  NcclCollective::Options options = OptionsOf(0, 3);
  options.connect_timeout = absl::Milliseconds(200);
  const absl::Status status = NcclCollective::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("ranks 1, 2 of 3 did not arrive within 200 ms"));
}

// The third rank arrives and dies, so NCCL waits for it without end.
TEST_F(NcclCollectiveLogic, SurvivorsOfAFailedCreateFormASmallerGroup) {
  fake_tells_losses = false;  // Of each other, when they give up.
  NcclCollective::Options victim = OptionsOf(2, 3);
  victim.keep_trying = [] { return absl::CancelledError("dies here"); };
  EXPECT_FALSE(NcclCollective::Create(victim).ok());
  OnAllRanks(2, [&](int rank) {
    NcclCollective::Options options = OptionsOf(rank, 3);
    int calls = 0;
    options.keep_trying = [&] {
      return ++calls < 100 ? absl::OkStatus()
                           : absl::AbortedError("worker 2 is dead");
    };
    const absl::Status status = NcclCollective::Create(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;

    const auto collective = Create(OptionsOf(rank, 2, "smaller"));
    std::vector<float> data = WholeNumbers(rank, 10);
    EXPECT_EQ(AllReduce(*collective, data), absl::OkStatus());
    EXPECT_EQ(data, SumOfWholeNumbers(2, 10));
  });
}

TEST_F(NcclCollectiveLogic, CreateEndsAfterTheTimeoutWhileItConnects) {
  NcclCollective::Options victim = OptionsOf(1, 2);
  victim.keep_trying = [] { return absl::CancelledError("dies here"); };
  EXPECT_FALSE(NcclCollective::Create(victim).ok());
  NcclCollective::Options options = OptionsOf(0, 2);
  options.connect_timeout = absl::Milliseconds(300);
  const absl::Status status = NcclCollective::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("has not connected to all others after 300 ms"));
}

}  // namespace
}  // namespace slackline
