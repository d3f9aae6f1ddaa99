// What `slackline run` adds to failure.txt: how the processes that the failure
// is about have ended, and the end of their logs.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/run.pb.h"
#include "server/coordinator/failure_page.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

struct LoggedExit {
  MemberExit exit;
  std::string log_path;
};

// Which exits the failure is about: of those that the summary names, and of
// `dead` the first one and those that a signal has killed; of each process the
// last exit. Those that the summary names come first; else in the order of
// `exits`, in which they happened. Others have only followed.
std::vector<LoggedExit> ExitsAtFault(const run::Summary& summary,
                                     const std::vector<LoggedExit>& exits,
                                     const std::vector<MemberExit>& dead);

// Writes the page of the run in `facts.folder` as a whole, with the logs of
// `at_fault` read now. Returns what the terminal says of it; if the page could
// not be written, with why.
std::string LeaveFailurePage(FailureFacts facts,
                             const std::vector<LoggedExit>& at_fault);

}  // namespace slackline
