// What the folder of a run, which may stand where a cluster config does, says
// of the run.
#pragma once

#include <string>

namespace slackline {

bool IsRunFolder(const std::string& config);
// The config itself, or the one that is in the folder.
std::string ClusterFileOf(const std::string& config);

// A folder whose run has ended: nobody needs to be asked, the summary is there.
bool HasEnded(const std::string& config);
// A sentence that says that the run in this folder was handed to Slurm and has
// not begun; empty if that is not so.
std::string WaitsInSlurm(const std::string& config);

}  // namespace slackline
