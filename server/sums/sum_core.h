// SumCore: sums gradients for workers that step by all-reduce. Each rank of a
// group sends its part of a piece, and gets the sum of all parts back once they
// are there. Nothing of a shard changes, and nothing is kept of a group that is
// over: a sum that is not completed is the group's loss, which makes a new one.
//
// The sum is ((part of rank 0 + part of rank 1) + ...), whatever the order in
// which they come: equal parts make equal bits.
//
// Deterministic state machine without I/O. Thread-compatible; one for each
// shard thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/message.h"
#include "common/view/shard_map.h"

namespace slackline {

// Of a part, at most.
inline constexpr size_t kSumPieceBytesMax = size_t{1} << 20;

class SumCore {
 public:
  struct Options {
    // Parts of one rank that wait for those of others, at most; more are
    // refused. Ranks keep fewer under way.
    size_t waiting_bytes_max = size_t{32} << 20;
    int waiting_parts_max = 4096;
    // Where sums are made; null: on the heap.
    std::shared_ptr<PayloadMemory> memory;
  };
  struct Effects {
    std::vector<Outgoing> sends;
  };

  explicit SumCore(Options options) : options_(std::move(options)) {}

  // Sums of an earlier group are dropped.
  void OnView(std::shared_ptr<const View> view);
  // A message with a SumRequest. What makes no sense is refused and changes
  // nothing.
  void OnMessage(const PeerId& from, const Message& message, Effects* effects);

  // Bytes that wait for parts of others.
  size_t waiting_bytes() const;
  int64_t sums() const { return sums_; }  // That were completed.

 private:
  struct Member {  // Of the group.
    PeerId peer;
    size_t waiting_bytes = 0;
    int waiting_parts = 0;
  };
  struct Sum {
    size_t bytes = 0;            // Of each part.
    std::vector<Payload> parts;  // By rank; those to come are empty.
    int missing = 0;
  };
  using Key = std::pair<int64_t, int32_t>;  // Operation and piece.

  // Why the part is not taken in; empty: it may be.
  std::string Fault(const PeerId& from, const wire::SumRequest& request,
                    const Message& message) const;
  Payload Add(const Sum& sum) const;
  Outgoing Reply(const PeerId& to, const wire::SumRequest& request) const;

  const Options options_;
  std::shared_ptr<const View> view_;
  // Of the view's group.
  std::map<int32_t, Member> members_;  // By rank, as far as they have come.
  int32_t ranks_ = 0;                  // As the first of them says.
  std::map<Key, Sum> open_;
  int64_t sums_ = 0;
};

}  // namespace slackline
