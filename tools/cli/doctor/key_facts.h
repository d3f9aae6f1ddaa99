// The key that a job would have, looked at where `slackline run` would take it.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "common/process/job_key.h"
#include "proto/cluster.pb.h"
#include "proto/doctor.pb.h"

namespace slackline {

// Makes no key, though the start of the job would.
doctor::KeyFacts LookAtKey(const config::ClusterConfig& config,
                           const KeyPlace& place);

// As KeyFacts.fingerprint, at `now`, of the key of the job that is made of this
// file.
std::string KeyFingerprint(const std::string& job, const std::string& file,
                           absl::Time now);

}  // namespace slackline
