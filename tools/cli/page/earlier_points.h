// How a job came to where it is, before anybody opened its page: points of the
// curves, from the records that its run has written (metrics.jsonl).
#pragma once

#include <cstddef>
#include <istream>
#include <nlohmann/json.hpp>
#include <vector>

namespace slackline {

// Of the records of times before `until`, in seconds of the job: at most so
// many points, the oldest first, evenly in time, and none more often than each
// second. A point has the fields of PageState::History(): "loss" is the mean
// over what its workers have recorded since the last point, "test_loss" and
// "test_accuracy" are those of the last evaluation. What no record has is
// empty; "rate" has examples per second by worker: those of its last record,
// unless the next one is missing for long; null where there is none.
// Lines that are no records are left out. The memory does not grow with the
// file.
std::vector<nlohmann::ordered_json> EarlierPoints(std::istream& metrics,
                                                  double until,
                                                  size_t points_max);

}  // namespace slackline
