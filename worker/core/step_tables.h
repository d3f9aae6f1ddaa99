// StepTables: of the step over servers that a worker computes: which version of
// each shard it computes at, and which tables have come, if it has begun before
// all of them have.
//
// Deterministic state machine without I/O. Thread-compatible.
#pragma once

#include <vector>

#include "common/ids.h"
#include "common/view/shard_map.h"
#include "worker/client/client_core.h"

namespace slackline {

class StepTables {
 public:
  // A step begins with all parameters.
  void BeginWith(const PullResult& parameters);
  // A step begins without any; Take() brings them, one table after the other.
  void BeginWithout(const View& view);

  // The step waits for tables.
  bool is_missing() const { return !has_come_.empty(); }
  bool HasCome(TableId table) const {
    return has_come_.empty() || has_come_.at(static_cast<size_t>(table));
  }
  void Take(const TableValues& values);
  // The tables that have not come.
  std::vector<TableId> Missing() const;
  // All tables have come.
  void Complete() { has_come_.clear(); }
  // While the step waits for tables, a newer view may split shards in two: what
  // has come counts for what is split off it.
  void OnView(const View& view);

  // By shard. There may be fewer than the view has shards by now.
  const std::vector<Version>& versions() const { return versions_; }

 private:
  std::vector<Version> versions_;
  std::vector<bool> has_come_;  // By table; empty: all have come.
};

}  // namespace slackline
