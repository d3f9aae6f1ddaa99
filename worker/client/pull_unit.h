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
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/data.pb.h"
#include "worker/client/shard_split.h"

namespace slackline {

// The parameters for a step, as in wire::Pull::Step.
inline std::shared_ptr<const wire::Pull> AskForStep(Clock clock,
                                                    Clock own_clock,
                                                    bool exact = false) {
  auto asked = std::make_shared<wire::Pull>();
  asked->mutable_step()->set_clock(clock);
  asked->mutable_step()->set_own_clock(own_clock);
  asked->mutable_step()->set_exact(exact);
  return asked;
}

struct PullUnit {
  uint64_t id = 0;       // wire::Pull.id
  uint64_t pull_id = 0;  // PullResult::pull_id
  // What is asked of each shard; without the shards and the number.
  std::shared_ptr<const wire::Pull> asked;
  std::vector<int32_t> shards;  // Shards that have not answered,
  size_t bytes = 0;             // and the bytes of their answers.
  absl::Time sent;              // When it was sent for the first time.
  uint64_t asked_as = 0;        // Number of the last transmission.
  absl::Time doubt_at;          // When a probe is due.
  bool doubted = false;         // A probe newer than asked_as will decide.
  int doubts = 0;               // Doubts that ended with a repetition.
  // When it is sent again, after a refusal.
  absl::Time resend_at = absl::InfiniteFuture();
  int refusals = 0;
  int unanswered_sends = 0;   // Repetitions since the last sign of life.
  int32_t waiting_rank = -1;  // Known after a PARKED answer; else below 0.
  Clock waiting_clock = 0;
  absl::Time waiting_since;  // Since when it waits for that clock.

  Clock clock() const {
    return asked->has_state() ? asked->state().clock() : asked->step().clock();
  }
  bool parked() const { return waiting_rank >= 0; }
  bool Wants(int32_t shard) const {
    return std::find(shards.begin(), shards.end(), shard) != shards.end();
  }
  // Another message of the same pull, for other shards of it.
  PullUnit Sibling() const {
    PullUnit other;
    other.pull_id = pull_id;
    other.asked = asked;
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
