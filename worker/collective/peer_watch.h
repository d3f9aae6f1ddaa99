// What ranks of a group say to each other beside their data: that they leave.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "worker/collective/stream.h"

namespace slackline {

// A stream to each other rank, on which nothing else is sent. One that ends
// without a goodbye is a loss.
class PeerWatch {
 public:
  // What a goodbye takes of a stream.
  static constexpr size_t kGoodbyeBytes = 1;

  // `streams` by rank; that of `rank` itself is nullptr.
  static absl::StatusOr<std::unique_ptr<PeerWatch>> Create(
      int rank, std::vector<std::unique_ptr<Stream>> streams);

  // The ranks that have left, with or without a goodbye. What they have done
  // before counts. Any thread.
  bool Gone(int rank) const { return gone_[static_cast<size_t>(rank)].load(); }
  std::vector<int> Gone() const;
  // Why ranks are gone, for an operation that their loss has interrupted.
  const char* GoneReason() const { return gone_reason_.load(); }

  // One thread calls one of the two.
  void SayGoodbye();
  void GiveUp();

  // As AwaitLoss() and EndWatch() of Mesh, on another thread.
  absl::Status AwaitLoss();
  void EndWatch();

 private:
  PeerWatch(int rank, std::vector<std::unique_ptr<Stream>> streams,
            Descriptor end_watch)
      : rank_(rank),
        streams_(std::move(streams)),
        end_watch_(std::move(end_watch)),
        gone_(streams_.size()) {}

  const int rank_;
  const std::vector<std::unique_ptr<Stream>> streams_;
  const Descriptor end_watch_;
  std::vector<std::atomic<bool>> gone_;
  std::atomic<const char*> gone_reason_ = "it has left the group";
};

}  // namespace slackline
