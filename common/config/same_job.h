// Which configs are of one job: a command that is given again goes on with the
// run that it has begun, also on other machines.
#pragma once

#include <string>

#include "proto/cluster.pb.h"

namespace slackline {

// The config without all that says where the job runs: hosts, addresses, ports
// and GPUs of its processes, how they are placed, how they are started, where
// the members of etcd are, how they are trusted, and who is told of the run.
// Groups that differ in nothing else are one. What is left decides what is
// trained, and how; two configs in which it is equal are of one job.
config::ClusterConfig WithoutPlaces(const config::ClusterConfig& config);

// Empty: the config is of the job of a run whose config is `of_run`. Else why
// not, to complete "the run in DIR". For configs that are filled in.
std::string WhyOtherJob(const config::ClusterConfig& config,
                        const config::ClusterConfig& of_run);

}  // namespace slackline
