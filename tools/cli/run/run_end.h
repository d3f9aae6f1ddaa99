// How a run has ended, and what is left of it in its folder.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"
#include "tools/cli/display.h"
#include "tools/cli/members/supervisor.h"
#include "tools/cli/run/job_place.h"
#include "tools/cli/run/restorer.h"
#include "tools/cli/run/run_options.h"
#include "tools/cli/run/running_job.h"

namespace slackline {

// The server with the coordinator writes the summary of a run; if it has died,
// nobody has. Then there is one at least of how the job has ended, with which
// checkpoint the run began, what its records say, and which checkpoint of its
// own is the newest. files_incomplete says where the records end, and what is
// not known. `host` is that server, if the job was lost with it.
absl::Status WriteShortSummary(const std::string& folder,
                               const config::ClusterConfig& config,
                               const run::CheckpointRecord& beginning,
                               wire::JobEnd::Cause cause, int64_t steps,
                               absl::string_view why,
                               absl::string_view host = "");

// What one types so that the job goes on from a checkpoint; of an empty name,
// from the newest one of its own.
std::string GoOnLine(const RunOptions& options, const std::string& cluster_file,
                     const std::string& out_dir, const std::string& root,
                     const std::string& checkpoint);

// Once no process of it is left: OK if the job has finished and its summary is
// there. Else why not, and there is a summary with that and its failure.txt;
// `*lost` is what else is known of it. `gone`: where its processes were.
// Cancelled: the user has ended it before it ran.
absl::Status EndOfRun(const RunOptions& options, const std::string& out_dir,
                      const config::ClusterConfig& config,
                      const run::CheckpointRecord& beginning,
                      const RunningJob& job, const JobPlace::Gone& gone,
                      absl::Status ended, Restorer::Lost* lost);

// The folder of a run whose processes could not be started says so, too.
absl::Status NotStarted(const RunOptions& options, const std::string& out_dir,
                        const config::ClusterConfig& config,
                        const run::CheckpointRecord& beginning,
                        const absl::Status& why);

// The exit code of a job that has finished. The programs of workers may do more
// after that, and what goes wrong there is the user's to know.
int AfterTheEnd(const config::ClusterConfig& config,
                const run::Summary& summary, const Supervisor& supervisor,
                Display* display);

}  // namespace slackline
