// What the config may say about the data.
#pragma once

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with the block, but not what is wrong with the files.
void CheckData(const config::Data& data, const ConfigProblems& problems);
// The same for this source alone.
void CheckTeacherStudent(const config::TeacherStudentData& teacher,
                         const ConfigProblems& problems);

}  // namespace slackline
