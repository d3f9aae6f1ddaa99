// The two systems that bench_allreduce compares on one transport.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline::bench {

// What one rank has. Of the thread that created it.
class AllReduceRank {
 public:
  virtual ~AllReduceRank() = default;

  // Sets the buffer, and its size.
  virtual absl::Status Fill(const std::vector<float>& values) = 0;
  virtual absl::StatusOr<std::vector<float>> Read() = 0;

  // Replaces the first `size` elements of the buffer by their sums over all
  // ranks; they are there when this returns. Every rank does the same.
  virtual absl::Status Slackline(size_t size) = 0;
  virtual absl::Status Raw(size_t size) = 0;
};

struct AllReduceWorld {
  int rank = 0;
  int world_size = 1;
  RendezvousStore* store = nullptr;  // One for each world.
};

// Over tcp, or through shared memory; raw is Gloo over tcp.
absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateTcpRank(
    const AllReduceWorld& world);
absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateShmRank(
    const AllReduceWorld& world);

// Over tcp with a key, encrypted; raw is ours without one.
absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateKeyedRank(
    const AllReduceWorld& world);

// How many GPUs there are; 0 also in a build without NCCL. Not to be called in
// a process that forks.
int CountGpus();
// On GPU rank modulo their number.
absl::StatusOr<std::unique_ptr<AllReduceRank>> CreateNcclRank(
    const AllReduceWorld& world);

}  // namespace slackline::bench
