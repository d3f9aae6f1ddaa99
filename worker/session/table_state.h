// What an optimizer keeps of each table, whole, for programs: to begin a job
// with it, and to take it away.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"
#include "worker/client/client_core.h"

namespace slackline {

// What the optimizer keeps of one table.
struct TableState {
  // So many were applied: for the next one t of Adam is one more.
  int64_t updates = 0;
  // As Optimizer::ApplyArgs::slots: float32, each with the shape of the table.
  std::vector<Payload> slots;
};

// InvalidArgument names the table whose state does not fit its optimizer, its
// size or its bounds, or what keeps the job from beginning with a state: tables
// with initializers, and given delays.
absl::Status CheckTableStates(absl::Span<const TableState> states,
                              absl::Span<const wire::Table> tables,
                              const config::ClusterConfig& config);

// The states in an answer to ClientCore::PullState(). The updates are those of
// the table's shard that has most.
std::vector<TableState> TableStatesOf(const PullResult& pulled);

}  // namespace slackline
