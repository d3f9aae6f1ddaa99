// `slackline status`: how a job stands, or how it has ended. Results go to
// stdout, the rest to stderr.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/inspection.pb.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

struct StatusOptions {
  JobOptions job;
  StatusTableOptions table;
  bool json = false;
  // Not how the job stands, but where its processes are: of these members, or
  // if there are none, of all.
  bool stacks = false;
  std::vector<wire::MemberName> stacks_of = {};
};
// Exit codes of `slackline status`, beside kExitFailed, kExitUsage and
// kExitSuspended.
inline constexpr int kStatusRunning = 0;
inline constexpr int kStatusForming = 3;
inline constexpr int kStatusFinished = 4;
inline constexpr int kStatusFailed = 5;
inline constexpr int kStatusNotReached = 6;
// Returns one of them.
int ShowStatus(const StatusOptions& options);

// What the folder of a run that has ended says of it. Errors as of
// ReadRunResult().
absl::Status ShowEnd(const std::string& folder, bool json,
                     bool in_a_line = false);

}  // namespace slackline
