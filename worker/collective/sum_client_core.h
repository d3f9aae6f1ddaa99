// SumClientCore: a rank's side of sums by servers (server/sums/sum_core.h).
// Cuts the buffer of an operation into pieces, deals them out to the shard
// threads, keeps the bytes under way to each within a window, sends again what
// was refused for now, and decides when an operation has failed.
//
// A message that is lost is not sent again: its operation fails after the
// time-out, and with it the group.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/link_state.h"
#include "common/message.h"

namespace slackline {

class SumClientCore {
 public:
  struct Options {
    int32_t rank = 0;
    int32_t ranks = 2;
    uint64_t run = 0;
    uint64_t group = 0;  // The view's.
    // Names of the shard threads that sum, for people. At least one; the same
    // ones in the same order on all ranks.
    std::vector<std::string> threads = {};
    size_t piece_bytes = 256 << 10;  // At most kSumPieceBytesMax.
    // So much may be under way to one shard thread. One piece may exceed it
    // when nothing else is.
    size_t window_bytes = 4 << 20;
    // How long a sum may take to come when others are late.
    absl::Duration timeout = absl::Minutes(1);
    // How long a piece waits before it goes again to a thread that has not
    // heard of the group, or whose queue was full.
    absl::Duration retry_after = absl::Milliseconds(2);
    // A server that has ended is waited for so long: it is in the views that
    // the next group is made of until its lease runs out.
    absl::Duration gone_max = absl::Seconds(1);
  };
  struct Send {
    size_t thread = 0;  // Index into Options::threads.
    Message message;
  };
  struct Effects {
    std::vector<Send> sends;
    // The operation is over. Errors as of Collective::Wait(), without what the
    // operation is.
    std::optional<absl::Status> ended;
  };

  explicit SumClientCore(const Options& options);

  int32_t rank() const { return options_.rank; }
  int32_t ranks() const { return options_.ranks; }

  // Begins operation `number`, in which each element of `data` becomes its sum
  // over all ranks. The one before is over; after a failure there is no next.
  // `data` is written to until the end.
  void Begin(int64_t number, absl::Span<float> data, absl::Time now,
             Effects* effects);
  void OnMessage(size_t thread, const Message& message, absl::Time now,
                 Effects* effects);
  // One of its sends was dropped, since the queue to the thread is full.
  void OnQueueFull(const Send& send, absl::Time now);
  void OnLinkState(size_t thread, LinkState state, absl::Time now,
                   Effects* effects);
  // Call it at NextWakeup() or later.
  void OnTick(absl::Time now, Effects* effects);
  absl::Time NextWakeup() const;  // InfiniteFuture between operations.

  // The payload that is under way to a thread.
  size_t bytes_in_flight(size_t thread) const {
    return links_[thread].bytes_in_flight;
  }

 private:
  struct Link {                                      // To a shard thread.
    absl::Time gone_since = absl::InfiniteFuture();  // Nobody listens there.
    // These are of the present operation.
    std::deque<int32_t> to_send;  // Pieces.
    size_t bytes_in_flight = 0;
    int in_flight = 0;
    absl::Time send_after = absl::InfinitePast();
    bool is_open() const { return in_flight > 0 || !to_send.empty(); }
  };

  absl::Span<float> Piece(int32_t index) const;
  bool running() const { return missing_ > 0; }
  // The piece is not under way any more.
  void Return(Link& link, int32_t piece);
  void SendAgainLater(Link& link, int32_t piece, absl::Time now);
  void SendWhatFits(size_t thread, absl::Time now, Effects* effects);
  void End(absl::Status status, Effects* effects);
  // Why an answer of the thread ends the operation; OK if it does not.
  absl::Status OnAnswer(size_t thread, const Message& message, absl::Time now);
  std::string Silent() const;  // Whoever has not answered.

  const Options options_;
  std::vector<Link> links_;  // By thread.
  // These are of the present operation.
  int64_t number_ = 0;
  absl::Span<float> data_;
  int32_t missing_ = 0;             // Pieces; 0: no operation.
  std::vector<bool> is_under_way_;  // By piece.
  absl::Time late_ = absl::InfiniteFuture();
};

}  // namespace slackline
