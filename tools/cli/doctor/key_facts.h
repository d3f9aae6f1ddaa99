// The key that a job would have, looked at where `slackline run` would take it.
#pragma once

#include "common/process/job_key.h"
#include "proto/cluster.pb.h"
#include "proto/doctor.pb.h"

namespace slackline {

// Makes no key, though the start of the job would.
doctor::KeyFacts LookAtKey(const config::ClusterConfig& config,
                           const KeyPlace& place);

}  // namespace slackline
