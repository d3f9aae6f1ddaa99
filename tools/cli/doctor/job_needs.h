// What a job needs of each of its hosts, by its config.
#pragma once

#include <string>
#include <vector>

#include "proto/cluster.pb.h"
#include "proto/doctor.pb.h"

namespace slackline {

struct JobNeedsOptions {
  std::vector<std::string> hosts;  // That of server 0 first.
  // The port at which the coordinator will listen; 0: `slackline run` takes any
  // free one.
  int coordinator_port = 0;
  std::string engine;    // "here", "ssh", "slurm", "ray".
  std::string data_dir;  // Of this machine, to know how large the data are.
  // Folders of Slackline's programs, on this machine and on the hosts.
  std::string bin_here = {};
  std::string bin_there = {};
};

// Members whose host is none of `hosts` are left out. Without the folders of
// data and the version, which are not of the config.
doctor::Job JobNeeds(const config::ClusterConfig& config,
                     const JobNeedsOptions& options);

}  // namespace slackline
