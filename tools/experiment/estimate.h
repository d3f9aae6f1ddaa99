// How long runs will take, from those that are done.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/experiment/plan.h"

namespace slackline {

// Seconds until the runs `to_do` (indices into plan.runs) are done, so many of
// them at the same time as the experiment says. A run takes as long as the mean
// of its variant's runs in `done` (index to seconds), else as the mean over all
// that are replays if it is one, and jobs if it is not. Without such: the time
// that `step_ms` makes its steps take, where the config alone tells their
// number. nullopt if for one of them nothing is known.
std::optional<double> EstimateSeconds(const ExperimentPlan& plan,
                                      const std::vector<int>& to_do,
                                      const std::map<int, double>& done);

// The shortest time, in seconds, that the conditions of the config allow for
// all steps; nullopt if it has none, or if the number of steps is not known
// from it.
std::optional<double> SecondsByConditions(const config::ClusterConfig& config);

// "about 14 min", or that it is unknown yet.
std::string EstimateText(std::optional<double> seconds);

}  // namespace slackline
