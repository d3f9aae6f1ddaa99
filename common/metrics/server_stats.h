// Statistics of shard threads and servers, folded into those of many.
#pragma once

#include "proto/run.pb.h"

namespace slackline {

// Adds what `from` has counted to `*to`, and appends its lists. The one place
// that says how each counter folds. Left alone: who it is (index, incarnation,
// pid), how it is (alive, heard_ms_ago), and io_utilisation, which is of a
// process.
void FoldServerStats(const run::ServerStats& from, run::ServerStats* to);

}  // namespace slackline
