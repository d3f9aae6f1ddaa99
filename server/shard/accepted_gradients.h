// AcceptedGradients: what a shard has accepted and does not have in its values
// yet, and which updates it becomes: the half of an order that is a part of the
// shard's state. UpdateOrder is the other half, at the shard's owner.
//
// | what a shard has | its updates |
// | --- | --- |
// | HeldByClock | a gradient at once, or those of a clock once it is complete |
// | GivenTurns | a gradient in its turn |
//
// Only the shard's log changes it: who applies the same records to the same
// shard gets the same updates, with the same bits.
//
// Each is also split with its shard: it keeps what belongs to the one region,
// and returns what belongs to the other.
//
// Pure state machines: no I/O, threads, time or randomness. Thread-compatible.
// A copy shares the tensors.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/optim/gradient_bound.h"
#include "common/payload.h"
#include "common/sync/modes/mode_rule.h"
#include "common/sync/participants.h"
#include "server/shard/shard.h"
#include "server/shard/shard_record.h"

namespace slackline {

struct ShardSnapshot;

// A gradient that waits for the rest of its clock.
struct HeldGradient {
  WorkerLife who;
  Payload gradient;
  StepOptions options = {};
  double rms = 0;  // GradientRecord::rms.
};

// What has become of a gradient whose turn has come.
struct TurnVerdict {
  enum class Kind { kApplied, kTooStale, kNotFinite, kOversized };
  Kind kind = Kind::kApplied;
  Rank rank{};
  Clock clock = 0;
  // One that was applied had missed so many updates, of so many for a clock.
  int64_t missed_updates = 0;
  int workers = 1;
  // What an oversized one is above.
  std::optional<GradientBound::Excess> excess = {};
};

// An update that is due.
struct DueUpdate {
  Clock clock = 0;
  absl::InlinedVector<Rank, 1> ranks;  // Whose gradients, in their order.
  absl::InlinedVector<Payload, 1> gradients;  // One of each rank, or the sum.
  absl::InlinedVector<double, 1> rms;
  // The number that one clock is divided by.
  int workers = 1;
  StepOptions options = {};
  // The log may have the sum in place of the gradients.
  bool of_clock = false;
};

class AcceptedGradients {
 public:
  // The shard beside it, and the size of the gradients that were applied.
  struct Present {
    const Shard& shard;
    const Participants& participants;
    const RunningRms& running_rms;
  };

  virtual ~AcceptedGradients() = default;

  // ---- Records. An error is InvalidArgument and says why the record does not
  // fit; nothing has changed then.
  virtual absl::Status MayJoin() const { return absl::OkStatus(); }
  virtual absl::Status MayInstall(const InstallRecord& /*install*/) const {
    return absl::OkStatus();
  }
  // A gradient that fits the shard and its worker's clock.
  virtual absl::Status Add(const GradientRecord& push,
                           const Present& present) = 0;
  // A sum of gradients that fit. `last` is the first clock that is not
  // complete, and `after` are the participants with these gradients.
  virtual absl::Status AddSum(const SumRecord& sum, Clock last,
                              const Participants& after) = 0;
  // The worker has pushed its clocks from `from` to below `to`.
  virtual void OnPushed(Rank /*rank*/, Clock /*from*/, Clock /*to*/,
                        const Participants& /*participants*/) {}
  // Anybody's clock may have changed.
  virtual void OnParticipants(const Participants& /*participants*/) {}
  // Somebody else's values are installed; returns how many gradients they
  // replace.
  virtual int OnInstalled() { return 0; }

  // ---- Updates.
  // The first clock that is not complete by now; `last` was it before.
  virtual Clock CompleteClock(Clock last,
                              const Participants& participants) const {
    return std::max(last, participants.MinClock());
  }
  // Takes what is due next: it has no gradients if they all came to nothing.
  // `completed` is the first clock that was not complete, if it is by now.
  // Appends what has become of each gradient that had a turn.
  virtual std::optional<DueUpdate> Next(const Present& present,
                                        std::optional<Clock> completed,
                                        std::vector<TurnVerdict>* verdicts) = 0;
  // An update has replaced these values; for those who need it.
  virtual bool NeedsUpdates() const { return false; }
  virtual void OnUpdate(const Payload& /*before*/, const Payload& /*after*/) {}

  // ---- State.
  virtual void Put(ShardSnapshot* snapshot) const = 0;
  // InvalidArgument: one of the gradients is none of such a store.
  virtual absl::Status Check(const ShardStore& store) const = 0;
  virtual size_t size() const = 0;  // Gradients.
  // Gradients held for the first clock that is not complete, in the order in
  // which they came.
  virtual absl::Span<const HeldGradient> held() const { return {}; }

  // The UpdateOrder of pulls, and of what becomes of the values.
  virtual ModeRule::Updates order_of_values() const = 0;
  // The limits of a cut are planned, each worker's for itself: the workers
  // leave only with all that is before it pushed, and values are installed
  // before it.
  virtual bool plans_cuts() const { return false; }
};

}  // namespace slackline
