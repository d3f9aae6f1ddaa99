// Commands that bring files to the hosts of a job.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace slackline {

// The engine that starts all processes on this machine.
inline constexpr absl::string_view kEngineHere = "here";

// The command that copies a folder to the host, with these flags of rsync's
// beside -a.
std::string CopyLine(const doctor::Job& job,
                     const std::vector<std::string>& flags,
                     const std::string& from, const std::string& host,
                     const std::string& to);

// The command that brings this version of Slackline to the host, in whose place
// there is another, or none, and what does instead.
std::string InstallText(const doctor::Job& job, const std::string& host,
                        bool is_there);

}  // namespace slackline
