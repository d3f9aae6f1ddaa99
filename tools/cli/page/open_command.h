// `slackline open`: a page in the browser on how a running job stands.
#pragma once

#include "tools/cli/job/job_connection.h"
#include "tools/cli/page/page_server.h"

namespace slackline {

struct OpenOptions {
  JobOptions job;
  PageServer::Options page;
  absl::Duration interval = absl::Seconds(1);  // Between two looks at the job.
};

// Until Ctrl-C; the page stays when the job has ended. Returns the exit code.
int OpenPage(const OpenOptions& options);

}  // namespace slackline
