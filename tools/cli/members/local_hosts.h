// Which hosts of a config are this machine, and a free port on it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/descriptor.h"
#include "proto/cluster.pb.h"

namespace slackline {

// The hosts of servers, workers and coordinator that are not this machine,
// each once, in the order of the config. Unknown names count as elsewhere.
std::vector<std::string> HostsElsewhere(const config::ClusterConfig& config);

// Keeps a port of this machine for a process that will listen there: nobody
// else is given it, and the process can bind it at any time, as servers do with
// SO_REUSEADDR.
class PortReservation {
 public:
  // A port that is free at the address of `host`.
  static absl::StatusOr<PortReservation> AnyFree(const std::string& host);
  int port() const { return port_; }

 private:
  PortReservation(Descriptor bound, int port)
      : bound_(std::move(bound)), port_(port) {}
  Descriptor bound_;
  int port_;
};

// Unavailable, naming host and port, if somebody listens there or a server
// could not.
absl::Status CheckPortFree(const std::string& host, int port);

}  // namespace slackline
