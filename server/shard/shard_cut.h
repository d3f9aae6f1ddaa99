// ShardCut: what one shard is at a cut (wire::Cut): with the gradients of the
// clocks before it, and with no others, in whatever order they come.
//
// As long as no record after the cut has come, the live shard is also the
// cut's. Before the first one a copy is made, which shares the tensors; from
// then on what is before the cut is applied to the copy, too, and what is after
// it to the live shard alone. Where gradients are held until a clock is
// complete none comes after the cut too early, so no copy is made.
//
// | record | before the cut |
// | --- | --- |
// | gradient | its clock is before its worker's limit |
// | advance | the worker's clock is before its limit |
// | join | all have the same limit, and its clock is before that |
// | installation | all have the same limit, and it is not later |
// | leave | always, but not for a copy that has turns |
//
// A shard that is split in two has no cut.
//
// A shard that has turns (GivenTurns) takes those at the cut whose gradients
// are before it, and has the others wait. Its workers have limits with which
// this can be (DelayPlan::CutAt()), only leave with all of their gradients
// pushed, and so take part in the copy for as long as it lives.
//
// Pure state machine: no I/O, threads, time or randomness. Thread-compatible;
// the shard thread is its only caller.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "proto/view.pb.h"
#include "server/shard/shard_machine.h"
#include "server/shard/shard_record.h"

namespace slackline {

// Up to which clock the gradients of each worker are in a cut. Immutable; the
// shards of a thread share one.
class CutLimits {
 public:
  explicit CutLimits(const wire::Cut& cut);

  // The clock of all workers; nullopt: each has its own.
  const std::optional<Clock>& uniform() const { return uniform_; }
  // The clock of this worker. The gradients of one that the cut does not name
  // are not in it.
  Clock Of(const WorkerLife& who) const;
  struct Until {
    WorkerLife who;
    Clock clock = 0;
  };
  // The clocks of the workers, if each has its own.
  const std::vector<Until>& until() const { return until_; }

 private:
  std::optional<Clock> uniform_;
  std::vector<Until> until_;
  absl::flat_hash_map<Incarnation, Until> of_;
};

class ShardCut {
 public:
  // The shard has had no record after the cut; this is told every record of it
  // from here on.
  explicit ShardCut(std::shared_ptr<const CutLimits> limits);

  // The record is about to be applied to `live`. An error says why there will
  // be no cut of this shard; nothing is to be called after it.
  absl::Status OnRecord(const ShardRecord& record, const ShardMachine& live);

  // The shard at the cut, once all that is before it has been applied; until
  // then nullptr. `live` has applied the last record that this was told. What
  // is returned is `live` or of this, and changes with it.
  const ShardMachine* Complete(const ShardMachine& live);

  // The live shard goes on by itself.
  bool copied() const { return copy_.has_value(); }

 private:
  bool IsBefore(const ShardRecord& record, const ShardMachine& live) const;

  std::shared_ptr<const CutLimits> limits_;
  std::optional<ShardMachine> copy_;
  // Whom it waits for, unless all have the same limit, and some who have got
  // there or left since the last look.
  std::vector<CutLimits::Until> missing_;
};

}  // namespace slackline
