// PullReplies: answers to pulls since the last Flush() of the thread, collected
// into few messages. The answers to one worker share a message until it has
// enough of them.
//
// Pure bookkeeping. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/message.h"
#include "server/shard/served_shard.h"

namespace slackline {

class PullReplies {
 public:
  // A message takes no more answers at this payload; it may be beyond it by one
  // answer.
  explicit PullReplies(size_t bytes_max) : bytes_max_(bytes_max) {}

  // One more answer to that worker, for the caller to fill in before the next.
  wire::PullAnswer& Add(const PeerId& to, uint64_t pull, ShardId shard);
  void Answer(ShardId shard, const ServedShard::Answer& told, absl::Time now);
  void Remind(ShardId shard, const ServedShard::StillParked& still);

  // Bytes of payload since the last Take().
  size_t bytes() const { return bytes_; }
  // The messages, in the order of their first answers. Nobody has signed them.
  std::vector<Outgoing> Take();

 private:
  static constexpr int kAnswersMax = 256;  // A message has no more.
  struct Reply {
    Outgoing out;
    size_t bytes = 0;  // Payload bytes.
  };
  // Payload of the answer that was added last.
  void Attach(const Payload& payload);
  // The message to that worker which has room for one more.
  size_t ReplyTo(const PeerId& to);

  const size_t bytes_max_;
  std::vector<Reply> replies_;
  std::map<PeerId, size_t> last_to_;  // Index in replies_.
  size_t last_ = 0;                   // The index of the last answer's reply.
  size_t bytes_ = 0;
};

}  // namespace slackline
