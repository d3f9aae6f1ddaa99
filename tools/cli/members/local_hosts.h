// Which hosts of a config are this machine, and a free port on it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/net/resolve.h"
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
  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&&) = delete;
  ~PortReservation();

  int port() const { return port_; }

 private:
  PortReservation(int fd, int port) : fd_(fd), port_(port) {}
  int fd_;
  int port_;
};

// Unavailable, naming host and port, if somebody listens there or a server
// could not.
absl::Status CheckPortFree(const std::string& host, int port);

}  // namespace slackline
