// Where the processes of a job show their health, by its config.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/cluster.pb.h"

namespace slackline {

struct HealthPlace {
  std::string host;
  int port = 0;  // 0: any free one.
};

// Of each server and worker of the config, by index and rank. Empty: they show
// none.
struct HealthPlaces {
  std::vector<HealthPlace> servers;
  std::vector<HealthPlace> workers;
};
HealthPlaces HealthPlacesOf(const config::ClusterConfig& config);

// Of process `index` of the role; nullopt: nowhere. `port_given` is
// --health-port.
std::optional<HealthPlace> HealthPlaceOf(const config::ClusterConfig& config,
                                         bool is_server, int index,
                                         std::optional<int> port_given);

}  // namespace slackline
