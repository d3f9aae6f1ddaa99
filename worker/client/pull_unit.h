// PullUnit: one message of a pull to one shard thread, until every shard that
// it asks for has answered.
//
// A unit owns the shards that have not answered yet, when it is asked again or
// probed, and for whom it waits. It knows no other unit; PullLane keeps them in
// order. No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "worker/client/shard_split.h"

namespace slackline {

enum class PullKind { kStep, kModel, kJoin, kState };

struct PullUnit {
  uint64_t id = 0;       // wire::Pull.id
  uint64_t pull_id = 0;  // PullResult::pull_id
  PullKind kind = PullKind::kStep;
  Clock clock = 0;
  Clock own_clock = 0;
  std::vector<int32_t> shards;  // Still unanswered.
  size_t bytes = 0;             // Of the answers of these.
  absl::Time sent;              // For the first time.
  uint64_t asked_as = 0;        // Number of the last transmission.
  absl::Time doubt_at;          // A probe is due.
  bool doubted = false;         // A probe newer than asked_as will decide.
  int doubts = 0;               // Those that ended with a repetition.
  absl::Time resend_at = absl::InfiniteFuture();  // After a refusal.
  int refusals = 0;
  int unanswered_sends = 0;   // Repetitions since the last sign of life.
  int32_t waiting_rank = -1;  // Known after a PARKED answer; else below 0.
  Clock waiting_clock = 0;
  absl::Time waiting_since;  // It waits for that clock of that rank.

  bool parked() const { return waiting_rank >= 0; }
  bool Wants(int32_t shard) const {
    return std::find(shards.begin(), shards.end(), shard) != shards.end();
  }
  // Another message of the same pull, for other shards of it.
  PullUnit Sibling() const {
    PullUnit other;
    other.pull_id = pull_id;
    other.kind = kind;
    other.clock = clock;
    other.own_clock = own_clock;
    return other;
  }
  // The shard has answered with so many bytes. It is one that the unit wants.
  void TakeOut(int32_t shard, size_t answered) {
    shards.erase(std::find(shards.begin(), shards.end(), shard));
    bytes -= answered;
  }
  // A unit that wants the shard wants both parts. Their answers together have
  // as many bytes as that of the whole.
  void SplitAt(const ShardSplit& split) {
    if (Wants(split.kept)) shards.push_back(split.split_off);
  }
};

}  // namespace slackline
