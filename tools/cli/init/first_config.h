// The config that `slackline init` writes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/placement.h"

namespace slackline {

struct FirstJob {
  // The command of the workers' own program, "python3 train.py"; empty: the
  // built-in net on MNIST.
  std::string program = {};
  int servers = 0;                    // 0: one for each two workers, at most 4.
  int workers = 2;                    // Without hosts.
  std::string engine = "here";        // Or "ssh", "slurm" or "ray".
  std::vector<HostSlots> hosts = {};  // Of ssh: at least one; else none.
  std::string mode = "bsp";           // As --mode takes it.
  std::string checkpoints = {};       // Folder; empty: none.
  bool copies = false;                // Of each shard, on another server.
};

// A whole config, with comments that say what to change first.
// InvalidArgument: the flag that does not fit, its value and the bound.
absl::StatusOr<std::string> FirstConfig(const FirstJob& job);

}  // namespace slackline
