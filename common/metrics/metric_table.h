// What processes of a job count and measure, in one table each: the fields of
// run::ServerStats and run::WorkerStats with their names for Prometheus
// (prometheus.io/docs/practices/naming), how parts of them are folded into a
// whole, and which of them can be no figures at all. Who counts something new
// adds a field, a line here, and the place that counts.
#pragma once

#include <google/protobuf/message.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "proto/run.pb.h"

namespace slackline {

struct Metric {
  enum class Kind {
    kCounter,    // Grows while the process lives; its name ends in _total.
    kGauge,      // Of now.
    kHistogram,  // A run::Histogram.
    kByPhase,    // A counter for each phase: a message of numbers.
  };
  int field = 0;  // A number of any kind, or a message as its kind says.
  Kind kind = Kind::kCounter;
  const char* name = "";  // With its unit; without "slackline_server_".
  const char* help = "";  // A sentence without its stop.
  // False: the figure is one of the process alone, and is not summed over its
  // threads, nor over processes.
  bool folds = true;
};

absl::Span<const Metric> ServerMetrics();
absl::Span<const Metric> WorkerMetrics();

// The message is one of the table's. Of a number, of a histogram, and of each
// phase, by its name.
double MetricValue(const google::protobuf::Message& stats,
                   const Metric& metric);
const run::Histogram& MetricHistogram(const google::protobuf::Message& stats,
                                      const Metric& metric);
std::vector<std::pair<std::string, double>> MetricPhases(
    const google::protobuf::Message& stats, const Metric& metric);

// Adds to `*to` what `from` has counted, as far as the table folds it.
void FoldMetrics(absl::Span<const Metric> metrics,
                 const google::protobuf::Message& from,
                 google::protobuf::Message* to);

// False if one that is folded is no figure: negative, not finite, so large that
// sums could overflow, or of more bins than are counted.
bool AreFigures(absl::Span<const Metric> metrics,
                const google::protobuf::Message& stats);

}  // namespace slackline
