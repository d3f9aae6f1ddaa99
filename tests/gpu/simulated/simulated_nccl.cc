// NCCL for ranks that are processes of one machine. What a rank gives to an
// operation is a file; an operation is done when the files of all ranks are
// there. The folder is that of SIMULATED_NCCL_DIR, and whoever made it removes
// it.
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/simulated/streams.h"

struct ncclComm {
  std::string folder;
  int ranks = 0;
  int rank = 0;
  long operations = 0;
  std::shared_ptr<std::atomic<bool>> aborted =
      std::make_shared<std::atomic<bool>>(false);
};

namespace slackline::simulated {
namespace {

std::string FileOf(const ncclComm& comm, long operation, int rank) {
  return comm.folder + "." + std::to_string(operation) + "." +
         std::to_string(rank);
}

void Write(const std::string& path, const void* data, size_t bytes) {
  std::ofstream(path + ".part", std::ios::binary)
      .write(static_cast<const char*>(data),
             static_cast<std::streamsize>(bytes));
  std::rename((path + ".part").c_str(), path.c_str());
}

bool Read(const std::string& path, std::vector<float>* values) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  file.read(reinterpret_cast<char*>(values->data()),
            static_cast<std::streamsize>(values->size() * sizeof(float)));
  return true;
}

// Root -1: a sum, in the order of ranks.
ncclResult_t Start(const void* send, void* receive, size_t count, int root,
                   ncclComm* comm, cudaStream_t stream) {
  CheckOnGpu(send, count * sizeof(float));
  CheckOnGpu(receive, count * sizeof(float));
  const auto given = std::make_shared<bool>(false);
  Put(stream, [=, copy = *comm, number = comm->operations] {
    if (*copy.aborted) return true;
    if (!*given) {
      Write(FileOf(copy, number, copy.rank), send, count * sizeof(float));
      *given = true;
    }
    std::vector<std::vector<float>> of_ranks(static_cast<size_t>(copy.ranks),
                                             std::vector<float>(count));
    for (int rank = 0; rank < copy.ranks; ++rank) {
      if (!Read(FileOf(copy, number, rank), &of_ranks[rank])) {
        usleep(100);
        return false;
      }
    }
    float* const result = static_cast<float*>(receive);
    for (size_t i = 0; i < count; ++i) {
      float sum = of_ranks[root < 0 ? 0 : root][i];
      for (int rank = 1; root < 0 && rank < copy.ranks; ++rank)
        sum += of_ranks[rank][i];
      result[i] = sum;
    }
    return true;
  });
  ++comm->operations;
  return ncclSuccess;
}

}  // namespace
}  // namespace slackline::simulated

using slackline::simulated::Start;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "a simulated error"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  std::snprintf(id->internal, sizeof(id->internal), "%s/%d-%d",
                std::getenv("SIMULATED_NCCL_DIR"), getpid(), made++);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks,
                                    ncclUniqueId id, int rank, ncclConfig_t*) {
  *comm = new ncclComm{.folder = id.internal, .ranks = ranks, .rank = rank};
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  *comm->aborted = true;
  return ncclCommDestroy(comm);
}
ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                           ncclDataType_t, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
  return Start(send, receive, count, -1, comm, stream);
}
ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                           ncclDataType_t, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return Start(send, receive, count, root, comm, stream);
}

}  // extern "C"
