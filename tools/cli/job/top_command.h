// `slackline top`: the status of a running job, again and again.
#pragma once

#include "absl/time/time.h"
#include "tools/cli/job/job_connection.h"
#include "tools/cli/job/status_table.h"

namespace slackline {

struct TopOptions {
  JobOptions job;
  StatusTableOptions table;
  absl::Duration interval = absl::Seconds(1);
  int count = 0;      // Ends after so many; 0: with the job or an interrupt.
  bool json = false;  // Each status as an object in a line.
};
// On a terminal each status replaces the one before and is shortened to the
// screen; elsewhere they follow each other. Of a job that has ended: its end.
// Returns the exit code: kExitDone also when the user interrupts it or the job
// ends, however it does.
int ShowTop(const TopOptions& options);

}  // namespace slackline
