// LinkModel: the network that a worker is made to have, by its config.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>

#include "absl/time/time.h"
#include "proto/cluster.pb.h"

namespace slackline {

struct LinkModel {
  absl::Duration latency;  // One way.
  double bytes_per_second = std::numeric_limits<double>::infinity();

  // How long the bytes occupy the link, in one direction.
  absl::Duration Occupied(size_t bytes) const {
    return absl::Seconds(static_cast<double>(bytes) / bytes_per_second);
  }
};

// nullopt if the conditions have no link.
std::optional<LinkModel> LinkOf(const config::Conditions& conditions);

// The largest latency and the smallest bandwidth of any worker's link: what a
// ring of all of them has. nullopt if no worker has a link.
std::optional<LinkModel> SlowestLink(const config::ClusterConfig& config);

// What a ring all-reduce of the bytes takes, if nothing but the links costs
// time: 2 (ranks - 1) transfers one after the other, each of bytes / ranks.
absl::Duration RingTime(const LinkModel& link, size_t bytes, int ranks);

}  // namespace slackline
