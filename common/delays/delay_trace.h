// A delay trace: which gradients each update of a model is made of, and from
// which version each gradient was computed. Recorded from a real run, or made
// by name. Times play no part, so a replay needs none to pass.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"

namespace slackline {

struct DelayTrace {
  struct Update {
    Clock clock = 0;
    // Whose gradients of that clock, in order.
    absl::InlinedVector<int32_t, 2> ranks;
    // That one clock's movement is divided by: ranks.size() where it is the
    // mean of a clock, as in BSP.
    int workers = 1;
  };
  // A gradient of this worker and clock was computed from the version after so
  // many updates.
  struct Read {
    int32_t rank = 0;
    Clock clock = 0;
    int64_t version = 0;
  };
  struct Shard {
    std::vector<Update> updates;
    std::vector<Read> reads;  // At most one for each worker and clock.
  };
  int workers = 0;
  // Of the first gradients. The steps before were by all-reduce, as when tables
  // begin with a worker's values; versions count from what they came to.
  Clock first = 0;
  // By shard id; or one that stands for every shard of whatever model.
  std::vector<Shard> shards;
  bool any_model = false;
  int files = 0;  // That it was read from.

  // The mean of a clock has no delay, so that no rule for stale gradients looks
  // at it. By name, each update is one gradient.
  bool IsMean(const Update& update) const {
    return !any_model &&
           update.workers == static_cast<int>(update.ranks.size());
  }
};

// By the number of a shard's updates that are over, none to all: the clock
// before which all gradients are in it that are in any update.
std::vector<Clock> CompleteClocks(const DelayTrace& trace,
                                  const DelayTrace::Shard& shard);

// Delays by name, in clocks: a gradient of clock c misses all updates of the
// last d clocks before c (and those of its own clock that come before its own),
// where d is, for each worker and clock, at most c and
//   constant:S   S
//   uniform:S    uniform in [0, S]
//   geometric:S  geometric with mean S / 4, at most S
//   straggler:S  S for the last worker, 0 for the others
// In each clock every worker's gradient is one update, in an order that is
// drawn. The same seed gives the same trace.
struct SyntheticDelays {
  enum class Kind { kConstant, kUniform, kGeometric, kStraggler };
  Kind kind{};
  int64_t clocks = 0;  // S.
};
// True for "name:number" whatever the name; else it is a folder.
bool IsSyntheticSpec(absl::string_view spec);
// InvalidArgument lists the names.
absl::StatusOr<SyntheticDelays> ParseSyntheticDelays(absl::string_view spec);
// Gradients of the clocks from `first` to below `steps`.
DelayTrace MakeTrace(const SyntheticDelays& delays, int workers, Clock steps,
                     uint64_t seed, Clock first = 0);

// The files trace-server-N.jsonl in a folder, sorted.
std::vector<std::filesystem::path> RecordedTraceFiles(
    const std::string& folder);
// What the servers of a run with train.trace have recorded in
// trace-server-N.jsonl of its folder. NotFound: nothing recorded.
// InvalidArgument with file and line: damaged, or the run had steps by
// all-reduce after some over servers, or more lives of a worker than one, which
// a trace cannot tell apart, or went on from a checkpoint.
absl::StatusOr<DelayTrace> ReadRecordedTrace(const std::string& folder);

}  // namespace slackline
