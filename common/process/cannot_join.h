// What a process of the config says last if it cannot join the job.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/net/transport.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"

namespace slackline {

// Tells the coordinator that this process of the config ends before it has
// joined, so that those who wait for it hear why. Waits for the answer for a
// moment; without effect if nobody listens at the coordinator's address.
void TellCannotJoin(Transport& network, wire::JoinRequest::Role role, int index,
                    const std::string& host,
                    const config::ClusterConfig& config,
                    const absl::Status& why);

}  // namespace slackline
