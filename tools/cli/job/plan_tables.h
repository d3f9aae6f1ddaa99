// Plans and moves of shards, for people.
#pragma once

#include <string>
#include <vector>

#include "proto/run.pb.h"

namespace slackline {

// The splits and moves with their reasons, the most loaded thread before and,
// as predicted, after, and the planner's own sentence. Lines end in "\n".
std::string PlanText(const run::Plan& plan);

// The moves that are under way or wait for their turn, at most `max` of them.
// Empty if there is none.
std::string PendingMovesText(const run::Plan& plan, int max);

// A line for each move that is done, in the given order.
std::string MovesTable(const std::vector<run::MoveRecord>& moves);

// "12 shards moved, 45.2 MB sent; pause p50 1.2 ms, longest 3.4 ms". Exact
// percentile by the nearest-rank method. Without a line end.
std::string MovesTotal(const std::vector<run::MoveRecord>& moves);

}  // namespace slackline
