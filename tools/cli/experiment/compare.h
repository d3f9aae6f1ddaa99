// `slackline compare` and `slackline ablate`: all runs of an experiment, one
// after the other, in a folder that remembers which are done.
#pragma once

#include "tools/cli/experiment/compare_options.h"
#include "tools/experiment/experiment_file.h"

namespace slackline {

// Returns the exit code: kExitDone only if all runs that were asked for are
// finished. Leaves no process behind.
int CompareVariants(const ExperimentSource& source,
                    const CompareOptions& options);

}  // namespace slackline
