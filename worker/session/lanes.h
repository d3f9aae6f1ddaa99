// What the config says of lanes, for all groups of a worker.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/cluster.pb.h"
#include "proto/view.pb.h"
#include "worker/collective/collective.h"
#include "worker/collective/lane_plan.h"

namespace slackline {

class Lanes {
 public:
  // InvalidArgument: an entry of sync.collective.lane fits no table.
  static absl::StatusOr<Lanes> Create(const config::ClusterConfig& config,
                                      absl::Span<const wire::Table> tables);

  // Whether gradients may go by the servers, so that groups connect to them.
  bool MayGoByServers() const;
  // The way of each table in a group that has connected, as the config says or
  // as it is measured now; writes it to the log. All ranks call it. Errors as
  // of Collective::Wait().
  absl::StatusOr<std::vector<Lane>> Choose(Collective& group) const;

 private:
  std::vector<std::optional<Lane>> lanes_;  // By table.
  std::vector<int64_t> bytes_;              // By table.
};

}  // namespace slackline
