// What processes of a job count and measure, in one table each: the fields of
// run::ServerStats and run::WorkerStats with their names for Prometheus
// (prometheus.io/docs/practices/naming), how parts of them are folded into a
// whole, which of them can be no figures at all, and where the summary of the
// run and the tables of `slackline status` have them. Who counts something new
// adds a field, a line here, and the place that counts (CONTRIBUTING.md).
#pragma once

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "proto/run.pb.h"

namespace slackline {

// No count is larger: sums of such numbers stay far from overflow.
inline constexpr int64_t kCountMax = int64_t{1} << 50;

// How `slackline status` and `top` show a metric: in a column of the table of
// servers or workers, in the order of the table of metrics. What they show
// beside these they compute of several figures (tools/cli/job/status_table.cc).
struct StatusColumn {
  enum class Form {
    kNumber,       // "1234": for what is small, or no digit may lack.
    kCount,        // "1.23 k"
    kBytes,        // "1.23 kB"
    kPercentiles,  // "0/2/7", of a histogram: p50, p99 and the largest.
  };
  const char* title = "";  // Empty: there is no column.
  Form form = Form::kNumber;
  bool of_copies = false;  // Only where the shards are to have copies.
};

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
  // The field of run::Summary, of the same type, that has the sum over all
  // processes of the run; 0: there is none.
  int of_run = 0;
  // The field of run::WorkerSummary, of the same type, that has what a worker
  // has counted in its last life; 0: there is none.
  int of_worker = 0;
  StatusColumn column = {};
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

// Adds to the sums of `summary` what these have counted.
void AddToSummary(absl::Span<const Metric> metrics,
                  const google::protobuf::Message& stats,
                  run::Summary* summary);
// Sets what `worker` has of it; the rest of `worker` stays.
void PutIntoSummary(const run::WorkerStats& stats, run::WorkerSummary* worker);

// False if one that is folded is no figure: negative, not finite, so large that
// sums could overflow, or of more bins than are counted.
bool AreFigures(absl::Span<const Metric> metrics,
                const google::protobuf::Message& stats);

}  // namespace slackline
