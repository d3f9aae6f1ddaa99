// HeldAnswers: messages to workers that wait until followers have what they say
// of shards. Messages to one worker leave in the order in which they came, so
// that who has an answer has every one before it.
//
// Pure bookkeeping. Thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/ids.h"
#include "common/message.h"

namespace slackline {

class HeldAnswers {
 public:
  // What has to be there first: the log of the shard up to this index.
  struct Need {
    ShardId shard{};
    uint64_t index = 0;
  };

  // Something waits to be sent to this worker, so what comes now has to wait,
  // too.
  bool Holds(const PeerId& to) const { return waiting_.count(to) > 0; }
  // `needs` may be empty.
  void Add(Outgoing out, std::vector<Need> needs);
  // Appends what may go now. `met` is asked once or more of a need, until it
  // says true.
  void Release(absl::FunctionRef<bool(const Need&)> met,
               std::vector<Outgoing>* sends);
  // Nobody is told any more what these messages say of the shard: they are
  // dropped, whole. Workers ask again.
  void DropAbout(ShardId shard);

  size_t count() const { return count_; }

 private:
  struct Waiting {
    Outgoing out;
    std::vector<Need> needs;
  };
  std::map<PeerId, std::deque<Waiting>> waiting_;  // None of them is empty.
  size_t count_ = 0;
};

}  // namespace slackline
