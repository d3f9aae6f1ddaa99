// Statistics of shard threads and servers, folded into those of many.
#pragma once

#include "proto/run.pb.h"

namespace slackline {

// Adds what `from` has counted to `*to`, as the table of metrics says
// (metric_table.h), and appends its lists. Left alone: who it is (index,
// incarnation, pid), how it is (alive, heard_ms_ago), and io_utilisation, which
// is of a process.
void FoldServerStats(const run::ServerStats& from, run::ServerStats* to);

// The sum over the server's shard threads of the part of the time in which they
// were busy.
double ThreadsBusy(const run::ServerStats& server);
// How many times busier these threads count as they are, because moving the
// server's bytes takes longer than handling them. At least 1.
double IoFactor(const run::ServerStats& server);

}  // namespace slackline
