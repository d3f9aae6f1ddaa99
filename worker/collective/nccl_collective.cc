#include "worker/collective/nccl_collective.h"

#include <nccl.h>
#include <stdlib.h>

#include <condition_variable>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/cuda/cuda_status.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {
namespace {

// Between two looks at what NCCL or the GPU does: many waits are shorter than a
// wake-up, so the first ones yield only.
class Pauses {
 public:
  void Next() {
    constexpr int kYields = 200;
    if (count_++ < kYields) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(absl::Microseconds(50));
    }
  }

 private:
  int count_ = 0;
};

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:  // Of a socket, for example.
    case ncclRemoteError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

// OK also while NCCL is busy. `communicator` may be null.
absl::Status NcclStatus(ncclResult_t result, ncclComm_t communicator,
                        const std::string& call) {
  if (result == ncclSuccess || result == ncclInProgress) {
    return absl::OkStatus();
  }
  const absl::StatusCode code = CodeOf(result);
  const char* const detail = ncclGetLastError(communicator);
  return absl::Status(
      code,
      absl::StrCat(
          call, ": ",
          code == absl::StatusCode::kUnavailable
              ? "lost the connection to a rank: "
              : "",
          ncclGetErrorString(result),
          detail == nullptr || *detail == '\0'
              ? ""
              : absl::StrCat(" (", detail, ")"),
          result == ncclInvalidUsage
              ? "; check that no two ranks share a GPU"
              : "; the group must be rebuilt (NCCL_DEBUG=WARN tells more)"));
}

// NCCL's calls that free a communicator block, and have hung when ranks died in
// bad moments. So each runs on a thread that is left behind if it does.
void RunBounded(absl::Duration wait_max, std::function<void()> call) {
  struct State {
    Mutex mutex;
    std::condition_variable changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, call = std::move(call)] {
    call();
    const MutexLock lock(state->mutex);
    state->done = true;
    state->changed.notify_one();
  }).detach();
  const auto end = SteadyDeadline(wait_max);
  MutexLock lock(state->mutex);
  while (!state->done && lock.WaitUntil(state->changed, end)) {
  }
}

absl::StatusOr<CudaStream> CreateSideStream() {
  // Before the computation: the other ranks wait, too.
  int lowest = 0;
  int highest = 0;
  SL_RETURN_IF_ERROR(
      CudaStatus(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
                 "range of stream priorities"));
  cudaStream_t stream = nullptr;
  SL_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest),
      "creation of the stream of a collective"));
  return CudaStream(stream);
}

constexpr char kIdName[] = "id";

}  // namespace

void SetNcclAlgorithm(config::Collective::Algorithm algorithm) {
  // A bare name is for broadcasts as well, which know rings only.
  const char* value = nullptr;
  if (algorithm == config::Collective::RING) value = "Ring";
  if (algorithm == config::Collective::TREE) {
    value =
        NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 0) ? "allreduce:tree" : "Tree";
  }
  if (value != nullptr) setenv("NCCL_ALGO", value, /*overwrite=*/0);
}

absl::StatusOr<std::unique_ptr<NcclCollective>> NcclCollective::Create(
    const Options& options) {
  SL_RETURN_IF_ERROR(
      CheckGroup(options.rank, options.world_size, options.store));
  SL_RETURN_IF_ERROR(CheckTimeout("timeout", options.timeout));
  SL_RETURN_IF_ERROR(CheckTimeout("connect_timeout", options.connect_timeout));
  std::unique_ptr<NcclCollective> collective(new NcclCollective(options));
  if (options.world_size == 1) return collective;
  const Rendezvous rendezvous({.rank = options.rank,
                               .world_size = options.world_size,
                               .group = options.group,
                               .time_max = options.connect_timeout,
                               .keep_trying = options.keep_trying,
                               .store = options.store});
  if (absl::Status joined = collective->Join(options, rendezvous);
      !joined.ok()) {
    (void)collective->Fail(joined);
    return Annotate(joined, absl::StrCat("rendezvous of all-reduce group \"",
                                         options.group, "\""));
  }
  return collective;
}

NcclCollective::NcclCollective(const Options& options)
    : rank_(options.rank),
      world_size_(options.world_size),
      gpu_(options.gpu),
      timeout_(options.timeout),
      computation_(options.stream) {}

NcclCollective::~NcclCollective() {
  if (communicator_ == nullptr) return;
  if (failure().ok() && CountDone().ok() && completed_ == started_) {
    Leave();
  } else {
    (void)Fail(absl::CancelledError("the collective is being destroyed"));
    GiveUp();
  }
}

std::string NcclCollective::Self() const {
  return absl::StrCat("rank ", static_cast<int>(rank_), " of ", world_size_,
                      " (GPU ", gpu_, ")");
}

absl::Status NcclCollective::Late() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "operation ", completed_, " on ", Self(), ": not done after ",
      absl::ToInt64Milliseconds(timeout_),
      " ms; a rank is stuck, slower than the timeout allows, or was killed; "
      "the group must be rebuilt"));
}

absl::Status NcclCollective::Join(const Options& options,
                                  const Rendezvous& rendezvous) {
  SL_RETURN_IF_ERROR(CheckGpu(gpu_));
  SL_RETURN_IF_ERROR(UseGpu(gpu_));
  SL_ASSIGN_OR_RETURN(scratch_, AllocateOnDevice(sizeof(float)));
  SL_ASSIGN_OR_RETURN(side_, CreateSideStream());
  SL_ASSIGN_OR_RETURN(filled_, CreateCudaEvent());

  // Rank 0 makes the identifier only when all are there: NCCL has a thread for
  // it that waits for them without end.
  int version = 0;
  SL_RETURN_IF_ERROR(
      NcclStatus(ncclGetVersion(&version), nullptr, "ncclGetVersion"));
  const std::string own_version = absl::StrCat("NCCL ", version);
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> versions,
                      rendezvous.Exchange(own_version));
  for (int i = 0; i < world_size_; ++i) {
    if (i == static_cast<int>(rank_) || versions[i] == own_version) continue;
    return absl::UnavailableError(absl::StrCat(
        "rank ", i, " of ", world_size_, " has ", versions[i], ", ", Self(),
        " has ", own_version, "; install the same version everywhere"));
  }
  ncclUniqueId id = {};
  if (rank_ == Rank{0}) {
    SL_RETURN_IF_ERROR(
        NcclStatus(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId"));
    SL_RETURN_IF_ERROR(rendezvous.Put(
        kIdName, std::string(id.internal, NCCL_UNIQUE_ID_BYTES)));
  } else {
    SL_ASSIGN_OR_RETURN(const std::string found,
                        rendezvous.Await(kIdName, Rank{0}));
    if (found.size() != NCCL_UNIQUE_ID_BYTES) {
      return absl::UnavailableError(
          absl::StrCat("rank 0 stored an identifier of ", found.size(),
                       " bytes, ", NCCL_UNIQUE_ID_BYTES, " are expected"));
    }
    std::memcpy(id.internal, found.data(), NCCL_UNIQUE_ID_BYTES);
  }

  const auto keep_on = [&]() -> absl::Status {
    SL_RETURN_IF_ERROR(rendezvous.Ask());
    if (!rendezvous.Over()) return absl::OkStatus();
    return absl::DeadlineExceededError(absl::StrCat(
        Self(), " has not connected to all others after ",
        absl::ToInt64Milliseconds(options.connect_timeout),
        " ms; check that all ranks still run, and that all ports are open "
        "between the machines (NCCL_SOCKET_IFNAME names the interface)"));
  };
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t result = ncclCommInitRankConfig(
      &communicator_, world_size_, id, static_cast<int>(rank_), &config);
  SL_RETURN_IF_ERROR(
      Settle(result, absl::StrCat("ncclCommInitRank on ", Self()), keep_on));
  // NCCL connects when it first needs to, which shall be now.
  float* const scratch = static_cast<float*>(scratch_.get());
  SL_RETURN_IF_ERROR(CudaStatus(
      cudaMemsetAsync(scratch, 0, sizeof(float), side_.get()), "memset"));
  const absl::Span<float> one(scratch, 1);
  SL_RETURN_IF_ERROR(Launch({.data = one, .root = std::nullopt}, keep_on));
  SL_RETURN_IF_ERROR(Launch({.data = one, .root = Rank{0}}, keep_on));
  SL_RETURN_IF_ERROR(Await(1, keep_on));
  completed_ = 0;  // These have no tickets.
  return absl::OkStatus();
}

Collective::Ticket NcclCollective::AllReduceAsync(absl::Span<float> data) {
  return Start({.data = data, .root = std::nullopt});
}

Collective::Ticket NcclCollective::BroadcastAsync(absl::Span<float> data,
                                                  Rank root) {
  const auto index = static_cast<int32_t>(root);
  SL_CHECK(index >= 0 && index < world_size_,
           absl::StrCat("broadcast from rank ", index, " of ", world_size_));
  return Start({.data = data, .root = root});
}

Collective::Ticket NcclCollective::Start(const Operation& operation) {
  const int64_t number = started_++;
  if (world_size_ == 1) {
    completed_ = started_;
  } else if (failure().ok()) {
    const absl::Time deadline = TimeSource().Now() + timeout_;
    absl::Status launched = Launch(operation, [&]() -> absl::Status {
      SL_RETURN_IF_ERROR(failure());
      return TimeSource().Now() < deadline ? absl::OkStatus() : Late();
    });
    if (!launched.ok()) {
      (void)Fail(std::move(launched));
      GiveUp();
    }
  }
  return static_cast<Ticket>(number);
}

absl::Status NcclCollective::Launch(const Operation& operation,
                                    const KeepOn& keep_on) {
  CudaEvent done;
  if (free_events_.empty()) {
    SL_ASSIGN_OR_RETURN(done, CreateCudaEvent());
  } else {
    done = std::move(free_events_.back());
    free_events_.pop_back();
  }
  SL_RETURN_IF_ERROR(MakeFollow(computation_, side_.get(), filled_.get()));
  float* const data = operation.data.data();
  const size_t size = operation.data.size();
  if (operation.root.has_value()) {
    // As integers, for a copy of bits is meant.
    SL_RETURN_IF_ERROR(Settle(ncclBroadcast(data, data, size, ncclUint32,
                                            static_cast<int>(*operation.root),
                                            communicator_, side_.get()),
                              absl::StrCat("broadcast on ", Self()), keep_on));
  } else {
    SL_RETURN_IF_ERROR(
        Settle(ncclAllReduce(data, data, size, ncclFloat32, ncclSum,
                             communicator_, side_.get()),
               absl::StrCat("all-reduce on ", Self()), keep_on));
  }
  SL_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(done.get(), side_.get()),
                                "record of an event"));
  done_.push_back(std::move(done));
  return absl::OkStatus();
}

absl::Status NcclCollective::Settle(int result, const std::string& call,
                                    const KeepOn& keep_on) {
  auto state = static_cast<ncclResult_t>(result);
  Pauses pauses;
  while (state == ncclInProgress) {
    SL_RETURN_IF_ERROR(keep_on());
    pauses.Next();
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) state = asked;
  }
  return NcclStatus(state, communicator_, call);
}

absl::Status NcclCollective::CheckCommunicator() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
  return NcclStatus(asked == ncclSuccess ? state : asked, communicator_,
                    absl::StrCat("operation ", completed_, " on ", Self()));
}

absl::Status NcclCollective::CountDone() {
  while (!done_.empty()) {
    const cudaError_t error = cudaEventQuery(done_.front().get());
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();  // It counts as one.
      break;
    }
    SL_RETURN_IF_ERROR(CudaStatus(
        error, absl::StrCat("operation ", completed_, " on ", Self())));
    free_events_.push_back(std::move(done_.front()));
    done_.pop_front();
    ++completed_;
  }
  return absl::OkStatus();
}

absl::Status NcclCollective::Await(int64_t number, const KeepOn& keep_on) {
  Pauses pauses;
  for (;;) {
    SL_RETURN_IF_ERROR(keep_on());
    SL_RETURN_IF_ERROR(CountDone());
    if (number < completed_) return absl::OkStatus();
    SL_RETURN_IF_ERROR(CheckCommunicator());
    pauses.Next();
  }
}

absl::Status NcclCollective::Wait(Ticket ticket) {
  const auto number = static_cast<int64_t>(ticket);
  SL_CHECK(number >= 0 && number < started_,
           absl::StrCat("wait for operation ", number, " of ", started_));
  int64_t completed = completed_;
  absl::Time deadline = TimeSource().Now() + timeout_;
  absl::Status done = Await(number, [&]() -> absl::Status {
    SL_RETURN_IF_ERROR(failure());
    if (completed != completed_) deadline = TimeSource().Now() + timeout_;
    completed = completed_;
    return TimeSource().Now() < deadline ? absl::OkStatus() : Late();
  });
  if (done.ok()) return done;
  done = Fail(std::move(done));
  GiveUp();
  return done;
}

void NcclCollective::Abort(absl::Status reason) {
  SL_CHECK(!reason.ok(), "a collective cannot be aborted with status OK");
  (void)Fail(std::move(reason));
}

absl::Status NcclCollective::Fail(absl::Status status) {
  const MutexLock lock(mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  return failure_;
}

absl::Status NcclCollective::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

void NcclCollective::GiveUp() {
  constexpr absl::Duration kAbortMax = absl::Seconds(10);
  if (communicator_ == nullptr) return;
  ncclComm* const communicator = std::exchange(communicator_, nullptr);
  RunBounded(kAbortMax, [communicator] { (void)ncclCommAbort(communicator); });
  // What is on the stream ends as soon as it sees that.
  const absl::Time deadline = TimeSource().Now() + kAbortMax;
  Pauses pauses;
  while (cudaStreamQuery(side_.get()) == cudaErrorNotReady &&
         TimeSource().Now() < deadline) {
    pauses.Next();
  }
  (void)cudaGetLastError();
}

void NcclCollective::Leave() {
  constexpr absl::Duration kLeaveMax = absl::Seconds(2);
  const absl::Time deadline = TimeSource().Now() + kLeaveMax;
  const absl::Status finalized =
      Settle(ncclCommFinalize(communicator_), "ncclCommFinalize", [&] {
        return TimeSource().Now() < deadline
                   ? absl::OkStatus()
                   : absl::DeadlineExceededError("ranks still work");
      });
  if (!finalized.ok()) return GiveUp();
  ncclComm* const communicator = std::exchange(communicator_, nullptr);
  RunBounded(kLeaveMax,
             [communicator] { (void)ncclCommDestroy(communicator); });
}

}  // namespace slackline
