// What ranks of a group say to each other beside their data: that they leave.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/descriptor.h"

namespace slackline {

// A connected socket to each other rank, on which nothing else is sent. One
// that closes without a goodbye is a loss.
class PeerWatch {
 public:
  // `sockets` by rank; that of `rank` itself has none.
  static absl::StatusOr<std::unique_ptr<PeerWatch>> Create(
      int rank, std::vector<Descriptor> sockets);

  // The ranks that have left, with or without a goodbye. What they have done
  // before counts. Any thread.
  bool Gone(int rank) const { return gone_[static_cast<size_t>(rank)].load(); }
  std::vector<int> Gone() const;

  // One thread calls one of the two.
  void SayGoodbye();
  void GiveUp();

  // As of Mesh, on another thread.
  absl::Status AwaitLoss();
  void EndWatch();

 private:
  PeerWatch(int rank, std::vector<Descriptor> sockets, Descriptor end_watch)
      : rank_(rank),
        sockets_(std::move(sockets)),
        end_watch_(std::move(end_watch)),
        gone_(sockets_.size()) {}

  const int rank_;
  const std::vector<Descriptor> sockets_;
  const Descriptor end_watch_;
  std::vector<std::atomic<bool>> gone_;
};

}  // namespace slackline
