// Phases of a step: where the time of a worker, and of a shard thread, goes.
// run::StepPhases and run::ThreadPhases say which there are; whoever walks them
// (metrics, `status`, the summary) has their names from there.
//
// Not the phases of a job, which are those of its modes (common/sync/phases.h).
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <utility>
#include <vector>

#include "proto/run.pb.h"

namespace slackline {

// Of a message whose fields are seconds: each field's name and value.
std::vector<std::pair<std::string, double>> PhasesOf(
    const google::protobuf::Message& phases);
void AddPhases(const google::protobuf::Message& from,
               google::protobuf::Message* to);
// False if one is negative, not finite, or so large that sums could overflow.
bool AreSeconds(const google::protobuf::Message& phases);
bool IsAmount(double value);

// What nobody else holds up: all but `waiting`, and but `reducing`, in which a
// worker waits for the others, too.
double OwnSeconds(const run::StepPhases& phases);

}  // namespace slackline
