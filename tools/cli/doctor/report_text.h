// What `slackline doctor` prints of its findings.
#pragma once

#include <string>

#include "proto/doctor.pb.h"

namespace slackline {

// "error: n2: ports: 7700 (coordinator) is taken, it has to be free; ...".
std::string FindingLine(const doctor::Finding& finding);
// Findings as lines, those that are fine only if `all`, and one line that sums
// up. Ends with "\n".
std::string ReportText(const doctor::Report& report, bool all);

}  // namespace slackline
