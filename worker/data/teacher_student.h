// Generated classification data: a random two-layer net (the teacher) labels
// random inputs, and the model (the student) learns to do the same.
#pragma once

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct TeacherStudentSplit {
  RawData train;
  RawData test;
};

// Inputs x are independent standard normal numbers, rounded to the middles of
// 256 equally likely ranges. The label is the largest component of W2 tanh(W1
// x): 32 hidden units, normal weights, rows of W2 of length 1 so that no class
// is far more common than another; a class that no example has is possible. A
// pure function of `config`. InvalidArgument names the field, its value and its
// bound.
absl::StatusOr<TeacherStudentSplit> GenerateTeacherStudent(
    const config::TeacherStudentData& config);

}  // namespace slackline
