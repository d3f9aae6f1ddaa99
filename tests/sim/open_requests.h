// What nobody has answered yet: pulls, pushes, calls and joins, as the network
// has seen them. Once the faults are over each is answered, or gets on, within
// a bound: that a run ends at last is not enough.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/time/time.h"
#include "common/message.h"

namespace slackline::sim {

class OpenRequests {
 public:
  enum class Kind {
    kPull,  // Of one shard by one worker.
    kPush,  // Likewise; an acknowledgement of earlier ones is progress.
    kCall,  // To the coordinator.
    kJoin,
    kCheckpoint,  // Waits for the workers' steps, and for files.
  };
  static const char* KindName(Kind kind);

  void OnSent(const PeerId& from, const Message& message, absl::Time now);
  void OnReached(const PeerId& to, const Message& message, absl::Time now);
  // Whoever asked is gone.
  void OnGone(const PeerId& who);

  struct Waiting {
    Kind kind{};
    PeerId who;
    uint64_t what = 0;  // A shard, a call, a token.
    absl::Time since;
  };
  // The longest one that waits since before `before`, and is of a kind that is
  // answered soon (calls and joins), or of one that may wait for other workers.
  std::optional<Waiting> Oldest(bool soon, absl::Time before) const;

  int64_t answered() const { return answered_; }

 private:
  using Key = std::tuple<Kind, PeerId, uint64_t>;
  struct Open {
    absl::Time since;
    uint64_t newest = 0;  // Of pushes: the largest sequence number.
  };
  void Begin(Kind kind, const PeerId& who, uint64_t what, absl::Time now,
             uint64_t newest = 0);
  void End(Kind kind, const PeerId& who, uint64_t what);

  std::map<Key, Open> open_;
  // Calls of members that are answered for good. After a pause a member may
  // repeat one whose answer lies there already, and wait for no other.
  std::set<std::pair<PeerId, uint64_t>> done_;
  int64_t answered_ = 0;
};

}  // namespace slackline::sim
