#include "worker/collective/lane_plan.h"

#include <algorithm>
#include <numeric>

#include "common/block/table_pattern.h"

namespace slackline {
namespace {

// Of the time: less is not worth another way.
constexpr double kGainMin = 0.05;

// Seconds of a rank's link for a byte by the servers.
double LinkCost(const LaneCosts& costs, int ranks) {
  return std::min(costs.servers, costs.ranks * ranks / (2.0 * (ranks - 1)));
}

// How many of `free` bytes among the ranks, of which there are `by_ranks`,
// should go by the servers as well: until the servers are done no earlier than
// the links.
double BestBytesByServers(const LaneCosts& costs, int ranks, double by_ranks,
                          double by_servers, double free) {
  const double servers_alone = costs.servers - LinkCost(costs, ranks);
  if (LinkCost(costs, ranks) >= costs.ranks) return 0;
  const double even = (by_ranks * costs.ranks - by_servers * servers_alone) /
                      (servers_alone + costs.ranks);
  return std::clamp(even, 0.0, free);
}

}  // namespace

double PredictSeconds(const LaneCosts& costs, int ranks, double bytes_by_ranks,
                      double bytes_by_servers) {
  const double link = LinkCost(costs, ranks);
  return std::max(bytes_by_servers * costs.servers,
                  bytes_by_servers * link + bytes_by_ranks * costs.ranks);
}

std::vector<std::optional<Lane>> LanesOf(const config::Collective& collective,
                                         absl::Span<const std::string> tables) {
  std::vector<std::optional<Lane>> lanes;
  for (const std::string& table : tables) {
    const auto entry =
        std::find_if(collective.lane().begin(), collective.lane().end(),
                     [&](const config::Lane& lane) {
                       return FitsTablePattern(lane.table(), table);
                     });
    if (entry == collective.lane().end() || entry->has_ranks()) {
      lanes.emplace_back(Lane::kRanks);
    } else if (entry->has_servers()) {
      lanes.emplace_back(Lane::kServers);
    } else {
      lanes.emplace_back(std::nullopt);
    }
  }
  return lanes;
}

LanePlan PlanLanes(absl::Span<const int64_t> table_bytes,
                   absl::Span<const std::optional<Lane>> lanes,
                   const LaneCosts& costs, int ranks) {
  LanePlan plan;
  double by_ranks = 0;
  double by_servers = 0;
  for (size_t t = 0; t < lanes.size(); ++t) {
    plan.lanes.push_back(lanes[t].value_or(Lane::kRanks));
    if (!lanes[t].has_value()) continue;
    (*lanes[t] == Lane::kServers ? by_servers : by_ranks) +=
        static_cast<double>(table_bytes[t]);
  }
  double free = 0;  // Bytes that may go either way.
  std::vector<size_t> order;
  for (size_t t = 0; t < lanes.size(); ++t) {
    if (lanes[t].has_value()) continue;
    order.push_back(t);
    free += static_cast<double>(table_bytes[t]);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return table_bytes[a] > table_bytes[b];
  });
  const auto predict = [&](double more_by_ranks, double more_by_servers) {
    return PredictSeconds(costs, ranks, by_ranks + more_by_ranks,
                          by_servers + more_by_servers);
  };
  plan.seconds_by_ranks = predict(free, 0);
  const double best =
      BestBytesByServers(costs, ranks, by_ranks + free, by_servers, free);
  double free_by_servers = 0;
  std::vector<Lane> mixed = plan.lanes;
  for (const size_t t : order) {
    const auto bytes = static_cast<double>(table_bytes[t]);
    if (free_by_servers + bytes > best) continue;
    mixed[t] = Lane::kServers;
    free_by_servers += bytes;
  }
  plan.seconds = predict(free - free_by_servers, free_by_servers);
  if (plan.seconds > (1 - kGainMin) * plan.seconds_by_ranks) {
    plan.seconds = plan.seconds_by_ranks;
  } else {
    plan.lanes = std::move(mixed);
  }
  for (size_t t = 0; t < lanes.size(); ++t) {
    if (plan.lanes[t] == Lane::kServers)
      plan.bytes_by_servers += table_bytes[t];
  }
  return plan;
}

}  // namespace slackline
