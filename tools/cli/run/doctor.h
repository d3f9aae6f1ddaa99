// `slackline doctor`: whether the hosts of a job are fit for it, before it is
// started.
#pragma once

#include "tools/cli/run/run_options.h"

namespace slackline {

struct DoctorOptions {
  RunOptions run;     // config_path may be the folder of a run.
  bool json = false;  // doctor.Report, as ToJson() has it.
  bool all = false;   // Also what is fine.
};

// Returns the exit code: kExitFailed if the job would fail. The report is on
// stdout. Nothing of it stays on any host.
int ExamineJob(const DoctorOptions& options);

}  // namespace slackline
