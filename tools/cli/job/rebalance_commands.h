// The subcommands that move shards. Each returns its exit code; results go to
// stdout, the rest to stderr.
#pragma once

#include <string>
#include <vector>

#include "tools/cli/job/job_connection.h"

namespace slackline {

// What they have in common.
struct MoveOutputOptions {
  bool wait = true;   // Until the moves are done, else until they are ordered.
  bool json = false;  // One object with `plan` and `moved`.
};

struct RebalanceOptions {
  JobOptions job;
  MoveOutputOptions output;
  bool dry_run = false;  // Plans only; then there is nothing to wait for.
};
int RebalanceShards(const RebalanceOptions& options);

struct MoveOptions {
  JobOptions job;
  MoveOutputOptions output;
  std::vector<std::string> shards;  // As for SelectShards().
  std::string to;                   // As for SelectTarget().
};
int MoveShards(const MoveOptions& options);

struct DrainOptions {
  JobOptions job;
  MoveOutputOptions output;
  int server = 0;
};
// Waits until the server has left the job, not only for its moves.
int DrainServer(const DrainOptions& options);

}  // namespace slackline
