// `slackline run`: a whole job, from its config to its results.
#pragma once

#include "tools/cli/run/run_options.h"

namespace slackline {

// Returns the exit code: kExitDone only if the job has finished and its summary
// is on stdout; of a dry run, if nothing speaks against the job, whose whole
// config is on stdout then. Leaves no process behind.
int Run(const RunOptions& options);

}  // namespace slackline
