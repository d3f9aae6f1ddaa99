// The rules of train { stop { ... } } that an evaluation can meet. The worker
// that evaluates keeps the model by them, the coordinator ends the job by them.
#pragma once

#include <string>

#include "common/block/config_problems.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with the rules.
void CheckStop(const config::Stop& stop, const ConfigProblems& problems);

// "test accuracy 0.9756 reached 0.975", for the first rule that these figures
// of the test set meet; empty if they meet none.
std::string StopRuleMet(const config::Stop& stop, double loss, double accuracy);

}  // namespace slackline
