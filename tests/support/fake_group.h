// A group of ranks in one process that all-reduces and broadcasts in memory,
// with failures where a test wants them. As strict as collective.h allows:
// after a failure every buffer of the operation is spoiled.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "common/status.h"
#include "worker/collective/collective.h"

namespace slackline {

// Each rank on a thread of its own, or a single rank on any.
class FakeGroup {
 public:
  explicit FakeGroup(int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      members_.push_back(std::make_unique<Member>(this, rank, ranks));
  }
  Collective& of(int rank) { return *members_[static_cast<size_t>(rank)]; }

  // The operation of this number, from 0, fails for `rank` when all others have
  // finished it, and the next one for everybody.
  void FailAt(int64_t operation, int rank) {
    members_[static_cast<size_t>(rank)]->fails_at = operation;
    fails_behind_ = operation;
  }
  // Operations that a rank has started.
  int64_t operations() const {
    return static_cast<int64_t>(operations_.size());
  }

  // Runs `what` for each rank, on threads.
  void Run(const std::function<void(int rank, Collective& group)>& what) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < members_.size(); ++rank) {
      threads.emplace_back(
          [&what, this, rank] { what(static_cast<int>(rank), of(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Operation {
    std::vector<absl::Span<float>> buffers;  // By rank.
    int root = -1;                           // -1: a sum.
    int started = 0;
    bool done = false;
  };

  class Member : public Collective {
   public:
    Member(FakeGroup* group, int rank, int ranks)
        : group_(*group), rank_(rank), ranks_(ranks) {}
    Rank rank() const override { return Rank{rank_}; }
    int32_t world_size() const override { return ranks_; }
    Ticket AllReduceAsync(absl::Span<float> data) override {
      return group_.Start(*this, data, -1);
    }
    Ticket BroadcastAsync(absl::Span<float> data, Rank root) override {
      return group_.Start(*this, data, static_cast<int>(root));
    }
    absl::Status Wait(Ticket ticket) override {
      return group_.Wait(*this, static_cast<int64_t>(ticket));
    }
    void Abort(absl::Status reason) override {
      const std::lock_guard<std::mutex> lock(group_.mutex_);
      if (failure.ok()) failure = reason;
      group_.broken_ = true;
      group_.changed_.notify_all();
    }

    // Under the group's mutex.
    int64_t started = 0;
    int64_t fails_at = std::numeric_limits<int64_t>::max();
    absl::Status failure;

   private:
    friend class FakeGroup;
    FakeGroup& group_;
    const int rank_;
    const int ranks_;
  };

  Collective::Ticket Start(Member& member, absl::Span<float> data, int root) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t number = member.started++;
    if (number == operations()) {
      operations_.push_back(std::make_unique<Operation>());
      operations_.back()->buffers.resize(members_.size());
      operations_.back()->root = root;
    }
    Operation& operation = *operations_[static_cast<size_t>(number)];
    SL_CHECK(operation.root == root, "ranks started different operations");
    operation.buffers[static_cast<size_t>(member.rank_)] = data;
    ++operation.started;
    // Whoever has failed may have let its buffers go.
    if (operation.started == member.ranks_ && !broken_ &&
        number <= fails_behind_) {
      Perform(operation);
    }
    changed_.notify_all();
    return Collective::Ticket{number};
  }

  static void Perform(Operation& operation) {
    const size_t size = operation.buffers.front().size();
    std::vector<float> result(size, 0.0f);
    for (const absl::Span<float> buffer : operation.buffers) {
      SL_CHECK(buffer.size() == size, "ranks gave different sizes");
      for (size_t i = 0; i < size && operation.root < 0; ++i)
        result[i] += buffer[i];
    }
    if (operation.root >= 0) {
      const absl::Span<float> from =
          operation.buffers[static_cast<size_t>(operation.root)];
      result.assign(from.begin(), from.end());
    }
    for (const absl::Span<float> buffer : operation.buffers)
      std::copy(result.begin(), result.end(), buffer.begin());
    operation.done = true;
  }

  absl::Status Wait(Member& member, int64_t number) {
    std::unique_lock<std::mutex> lock(mutex_);
    Operation& operation = *operations_[static_cast<size_t>(number)];
    changed_.wait(lock, [&] {
      return operation.done || broken_ || !member.failure.ok();
    });
    const bool fails = number >= member.fails_at || !operation.done;
    if (fails && member.failure.ok()) {
      member.failure = absl::UnavailableError("a connection was lost");
      broken_ = true;
      changed_.notify_all();
    }
    if (!member.failure.ok()) {
      const absl::Span<float> own =
          operation.buffers[static_cast<size_t>(member.rank_)];
      std::fill(own.begin(), own.end(),
                std::numeric_limits<float>::quiet_NaN());
    }
    return member.failure;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::unique_ptr<Operation>> operations_;
  int64_t fails_behind_ = std::numeric_limits<int64_t>::max();
  bool broken_ = false;
};

}  // namespace slackline
