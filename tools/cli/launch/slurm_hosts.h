// The nodes of the Slurm allocation in which this program runs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/placement.h"

namespace slackline {

// In Slurm's order; workers are spread evenly. FailedPrecondition: this is no
// allocation, or Slurm is not there.
absl::StatusOr<std::vector<HostSlots>> SlurmHosts();

}  // namespace slackline
