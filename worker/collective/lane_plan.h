// Which way the gradients of each table go in steps by all-reduce: among the
// ranks, or by the servers (server_sums.h); and what a sum of all of them
// takes.
//
// Pure logic: no I/O, threads or time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "proto/cluster.pb.h"

namespace slackline {

enum class Lane { kRanks, kServers };

// Seconds for each byte of a buffer, of each way alone.
struct LaneCosts {
  double ranks = 0;
  double servers = 0;
};

// Seconds for sums of so many bytes each way at the same time, by `ranks`
// ranks. A rank's link carries a byte among the ranks 2 (n - 1) / n times (a
// ring; Patarasu and Yuan, 2009) and one by the servers once, and is shared.
// What a byte by the servers takes beyond that is the servers' time, which is
// shared with nobody, so the sums end with the later of the two.
double PredictSeconds(const LaneCosts& costs, int ranks, double bytes_by_ranks,
                      double bytes_by_servers);

// The lane that the config gives each table; nullopt: as measured.
std::vector<std::optional<Lane>> LanesOf(const config::Collective& collective,
                                         absl::Span<const std::string> tables);

struct LanePlan {
  std::vector<Lane> lanes;  // By table.
  int64_t bytes_by_servers = 0;
  double seconds = 0;  // Predicted for a sum of all tables.
  // Predicted if all tables go among the ranks that may.
  double seconds_by_ranks = 0;
};
// Of the tables that may go either way, the largest first, those go by the
// servers that fit into the bytes with which the sum ends earliest; none if
// that gains less than a twentieth. The same on all ranks from the same
// arguments.
LanePlan PlanLanes(absl::Span<const int64_t> table_bytes,
                   absl::Span<const std::optional<Lane>> lanes,
                   const LaneCosts& costs, int ranks);

}  // namespace slackline
