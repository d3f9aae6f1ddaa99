// Runs below runs/, where `slackline run` makes its folders: for commands whose
// CONFIG is not enough to find a job.
#pragma once

#include <string>
#include <vector>

namespace slackline {

// Of a CONFIG that is not there: "; did you mean runs/NAME?" if a run of this
// name or job is there, else what to give. Empty: there is such a file.
std::string MissingConfigHint(const std::string& given);

// Folders of the runs of this job that a `slackline run` follows now, sorted.
std::vector<std::string> RunningRunsOf(const std::string& job);

// What has become of a run that has no summary, whose coordinator does not
// answer, and whose `slackline run` is gone: what is known of it, and the
// command that goes on. Empty: it may be that it lives.
std::string LostRunText(const std::string& folder);

}  // namespace slackline
