#include "worker/session/lanes.h"

#include <spdlog/spdlog.h>

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "common/block/config_problems.h"
#include "common/block/table_pattern.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "worker/collective/measure_lanes.h"

namespace slackline {

absl::StatusOr<Lanes> Lanes::Create(const config::ClusterConfig& config,
                                    absl::Span<const wire::Table> tables) {
  const config::Collective& collective = config.sync().collective();
  std::vector<std::string> names;
  Lanes lanes;
  for (const wire::Table& table : tables) {
    names.push_back(table.name());
    lanes.bytes_.push_back(TableElements(table) *
                           static_cast<int64_t>(sizeof(float)));
  }
  const ConfigProblems problems;
  for (int i = 0; i < collective.lane_size(); ++i) {
    CheckTablePattern(collective.lane(i).table(), names,
                      problems.In("sync").In("collective").In("lane", i));
  }
  SL_RETURN_IF_ERROR(problems.ToStatus());
  lanes.lanes_ = LanesOf(collective, names);
  return lanes;
}

bool Lanes::MayGoByServers() const {
  return absl::c_any_of(lanes_, [](const std::optional<Lane>& lane) {
    return lane != Lane::kRanks;
  });
}

absl::StatusOr<std::vector<Lane>> Lanes::Choose(Collective& group) const {
  const bool measured = absl::c_linear_search(lanes_, std::nullopt);
  LaneCosts costs;
  if (measured) {
    SL_ASSIGN_OR_RETURN(costs, MeasureLanes(group));
  }
  LanePlan plan = PlanLanes(bytes_, lanes_, costs, group.world_size());
  const std::string what = absl::StrFormat(
      "servers sum the gradients of %d of %d tables, %.2f of %.2f MB",
      absl::c_count(plan.lanes, Lane::kServers), plan.lanes.size(),
      static_cast<double>(plan.bytes_by_servers) / 1e6,
      static_cast<double>(absl::c_accumulate(bytes_, int64_t{0})) / 1e6);
  if (measured) {
    spdlog::info(
        "{}: a MB takes {:.2f} ms among the ranks, {:.2f} by the servers; a "
        "sum "
        "of all should take {:.2f} ms, {:.2f} among the ranks",
        what, costs.ranks * 1e9, costs.servers * 1e9, plan.seconds * 1e3,
        plan.seconds_by_ranks * 1e3);
  } else {
    spdlog::info("{}", what);
  }
  return std::move(plan.lanes);
}

}  // namespace slackline
