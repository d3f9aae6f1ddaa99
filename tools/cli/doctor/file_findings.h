// Folders and data of the hosts of a job: room, permission, sameness.
#pragma once

#include <string>

#include "proto/doctor.pb.h"
#include "tools/cli/doctor/findings.h"

namespace slackline {

// The folders that processes on this host write to, or run in.
void FindInFolders(const doctor::Job& job, const doctor::HostNeed& need,
                   const doctor::Host& host, Findings* findings);

// Whether the host has the data, and the same as the first host that has all of
// it, or this machine.
void FindInData(const doctor::Facts& facts, const doctor::HostNeed& need,
                const doctor::Host& host, Findings* findings);

// Folders that hosts have to share with the machine of the command, and so with
// each other: each of them has to see the mark that was left here.
void FindShared(const doctor::Facts& facts, Findings* findings);

}  // namespace slackline
