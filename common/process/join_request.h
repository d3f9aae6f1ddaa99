// How a process names itself when it joins a job.
#pragma once

#include <cstdint>
#include <string>

#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

// Never 0, and not given to another process start in practice.
uint64_t RandomToken();

// As this machine calls itself.
std::string OwnHostName();

// This program, by the name of its executable file.
wire::Build ThisBuild();

// The part of a join request that both roles fill in alike, with a new token.
wire::JoinRequest JoinRequestOf(wire::JoinRequest::Role role, int index,
                                const std::string& host,
                                const config::ClusterConfig& config);

// Empty if the entry of "worker 2" or "server 1" in the config is this machine:
// its `listen`, or its `host` if that is empty. Else a sentence that says where
// the entry is, and where this process is.
std::string WhyOnAnotherHost(const std::string& who, const std::string& host,
                             const std::string& listen);

}  // namespace slackline
