#include "common/health/health_place.h"

#include <cstddef>
#include <map>

#include "common/config/cluster_config.h"

namespace slackline {

HealthPlaces HealthPlacesOf(const config::ClusterConfig& config) {
  HealthPlaces places;
  if (!config.has_health()) return places;
  const config::Health& health = config.health();
  std::map<std::string, int> taken;  // Ports, by machine.
  const auto next = [&](const std::string& host) {
    const int port =
        health.port() == 0 ? 0 : health.port() + taken[MachineOf(host)]++;
    return HealthPlace{.host = health.host(), .port = port};
  };
  for (const ServerProcess& server : ServerProcesses(config))
    places.servers.push_back(next(server.host));
  for (const WorkerProcess& worker : WorkerProcesses(config))
    places.workers.push_back(next(worker.host));
  return places;
}

std::optional<HealthPlace> HealthPlaceOf(const config::ClusterConfig& config,
                                         bool is_server, int index,
                                         std::optional<int> port_given) {
  if (!config.has_health() && !port_given.has_value()) return std::nullopt;
  if (port_given.has_value())
    return HealthPlace{.host = config.health().host(), .port = *port_given};
  const HealthPlaces places = HealthPlacesOf(config);
  const std::vector<HealthPlace>& of_role =
      is_server ? places.servers : places.workers;
  // A server that was added to the job has no place in the config.
  if (static_cast<size_t>(index) >= of_role.size())
    return HealthPlace{.host = config.health().host(), .port = 0};
  return of_role[static_cast<size_t>(index)];
}

}  // namespace slackline
