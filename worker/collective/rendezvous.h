// How the ranks of a new group find each other in a store, and how long they
// try.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/time/time_source.h"
#include "worker/collective/rendezvous_store.h"

namespace slackline {

// One attempt to form a group, from its construction on. Thread-compatible.
class Rendezvous {
 public:
  struct Options {
    Rank rank{};
    int32_t world_size = 1;
    std::string group;        // Starts all keys.
    absl::Duration time_max;  // Over all calls.
    std::function<absl::Status()> keep_trying = nullptr;
    RendezvousStore* store = nullptr;  // Outlives this.
  };
  explicit Rendezvous(const Options& options);

  // What keep_trying says; OK if it is null. To be asked every Slice().
  absl::Status Ask() const;
  bool Over() const { return TimeSource().Now() >= deadline_; }
  // To wait before asking again: at most 40 ms. Zero if it is over.
  absl::Duration Slice() const;

  // Stores `value` for this rank and waits for those of all others, which it
  // returns by rank, with an empty one for this rank. To be called once.
  // DeadlineExceeded names the ranks that were not there in time. Others: what
  // keep_trying or the store returned.
  absl::StatusOr<std::vector<std::string>> Exchange(std::string value) const;

  // Stores one value for all ranks, under a name of its own.
  absl::Status Put(const std::string& name, std::string value) const;
  // Waits for what `root` Put() under that name. Errors as of Exchange().
  absl::StatusOr<std::string> Await(const std::string& name, Rank root) const;

  // "rank 1 of 4"
  std::string Self() const;

 private:
  std::string KeyOf(int rank) const;
  absl::StatusOr<std::string> Get(const std::string& key) const;
  absl::Status Missing(const std::vector<int>& ranks) const;

  const Options options_;
  const absl::Time deadline_;
};

// "rank 2" or "ranks 2, 3"
std::string RanksText(absl::Span<const int> ranks);

// InvalidArgument names the option unless it is in [1 ms, 24 h].
absl::Status CheckTimeout(const char* name, absl::Duration timeout);

// InvalidArgument names a rank outside [0, world_size), or a missing store if
// there are several ranks.
absl::Status CheckGroup(Rank rank, int32_t world_size,
                        const RendezvousStore* store);

}  // namespace slackline
