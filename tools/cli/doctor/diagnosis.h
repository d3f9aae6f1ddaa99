// What `slackline doctor` makes of what it was told: facts of each host in,
// findings out. No I/O, no time: the same facts give the same findings.
#pragma once

#include "proto/doctor.pb.h"

namespace slackline {

// Labels of doors that are health pages begin so.
inline constexpr char kHealthDoor[] = "health page of ";

// Of facts whose replies CheckReply() has accepted. Errors first, then
// warnings, notes and what is fine; within each as the hosts and checks come.
// Each finding is one line, whatever hosts have said.
doctor::Report Diagnose(const doctor::Facts& facts);

}  // namespace slackline
