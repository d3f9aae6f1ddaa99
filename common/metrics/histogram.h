// Counts of small integers, kept in the Protobuf form in which they are
// reported.
#pragma once

#include <cstdint>

#include "proto/run.pb.h"

namespace slackline {

inline constexpr int kHistogramBinsMax = 1024;

// Counts `value`. Negative ones count as 0; the last of 1024 bins collects
// everything beyond, but `max` is exact.
void AddToHistogram(int64_t value, run::Histogram* histogram);
// Adds the counts of `from` to `*to`.
void MergeHistogram(const run::Histogram& from, run::Histogram* to);
// The smallest value that at least `fraction` of the counted values do not
// exceed; 0 when nothing was counted.
int64_t HistogramPercentile(const run::Histogram& histogram, double fraction);
run::Percentiles PercentilesOf(const run::Histogram& histogram);

}  // namespace slackline
