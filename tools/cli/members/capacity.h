// Whether this machine holds a job: its processes against the machine's cores
// and memory, before any of them is started.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"

namespace slackline {

// What there is for a job now. 0: not known, and then nothing is said.
struct Capacity {
  int cores = 0;             // That this program may use.
  int64_t memory_bytes = 0;  // Free, or freed when needed.
};
Capacity CapacityHere();

// What a job takes at least. Of memory: that of its processes alone; what they
// share, as the code of their libraries, is not counted.
struct Demand {
  int servers = 0;
  int workers = 0;
  int threads = 0;           // That compute, of both.
  int64_t model_bytes = 0;   // Of its values; 0: not known.
  int64_t data_bytes = 0;    // Of the examples, in each worker.
  int64_t server_bytes = 0;  // Of one; of all servers the mean.
  int64_t worker_bytes = 0;  // Of one.
  int64_t memory_bytes() const {
    return servers * server_bytes + workers * worker_bytes;
  }
};
// As far as the config and the files below `data_dir` tell: a program of the
// workers' own, and layers whose size the data decide, may take more.
Demand DemandOf(const config::ClusterConfig& config,
                const std::string& data_dir);

// A sentence on a job with far more threads than the machine has cores; empty:
// it has not. Such a job runs, and is slow.
std::string CoresWarning(const Demand& demand, const Capacity& capacity);
// ResourceExhausted, with the figures, if the job needs more memory than there
// is: its start would take the machine down.
absl::Status CheckMemory(const Demand& demand, const Capacity& capacity);

}  // namespace slackline
