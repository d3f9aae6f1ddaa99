// What `slackline doctor` makes of what it was told: facts of each host in,
// findings out. No I/O, no time: the same facts give the same findings.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/doctor.pb.h"

namespace slackline {

// Lists in a reply, and texts in it, have at most so many elements and bytes.
// Labels of doors that are health pages begin so.
inline constexpr char kHealthDoor[] = "health page of ";

inline constexpr int kDoctorListMax = 4096;
inline constexpr size_t kDoctorTextMax = 64 << 10;

// InvalidArgument: no agent says so much, or such numbers.
absl::Status CheckReply(const doctor::Reply& reply);

// What the host says of itself; what it has tried is of pairs, and left out.
void TakeReply(doctor::Reply reply, doctor::Host* host);

// Of facts whose replies CheckReply() has accepted. Errors first, then
// warnings, notes and what is fine; within each as the hosts and checks come.
// Each finding is one line, whatever hosts have said.
doctor::Report Diagnose(const doctor::Facts& facts);

// The command that brings this version of Slackline to the host, in whose place
// there is another, or none, and what does instead.
std::string InstallText(const doctor::Job& job, const std::string& host,
                        bool is_there);

// "error: n2: ports: 7700 (coordinator) is taken, it has to be free; ...".
std::string FindingLine(const doctor::Finding& finding);
// Findings as lines, those that are fine only if `all`, and one line that sums
// up. Ends with "\n".
std::string ReportText(const doctor::Report& report, bool all);

}  // namespace slackline
