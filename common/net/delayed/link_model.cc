#include "common/net/delayed/link_model.h"

#include <algorithm>

namespace slackline {

std::optional<LinkModel> LinkOf(const config::Conditions& conditions) {
  if (!conditions.has_link()) return std::nullopt;
  LinkModel link;
  link.latency = absl::Milliseconds(conditions.link().latency_ms());
  if (conditions.link().has_bandwidth_mbit())
    link.bytes_per_second = conditions.link().bandwidth_mbit() * 1e6 / 8;
  return link;
}

std::optional<LinkModel> SlowestLink(const config::ClusterConfig& config) {
  std::optional<LinkModel> slowest;
  for (const config::WorkerGroup& group : config.worker()) {
    const std::optional<LinkModel> link = LinkOf(group.conditions());
    if (!link.has_value()) continue;
    if (!slowest.has_value()) slowest.emplace();
    slowest->latency = std::max(slowest->latency, link->latency);
    slowest->bytes_per_second =
        std::min(slowest->bytes_per_second, link->bytes_per_second);
  }
  return slowest;
}

absl::Duration RingTime(const LinkModel& link, size_t bytes, int ranks) {
  const int transfers = 2 * (ranks - 1);
  return transfers * link.latency +
         link.Occupied(bytes) * (static_cast<double>(transfers) / ranks);
}

}  // namespace slackline
