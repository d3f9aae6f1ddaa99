#include "common/metrics/metric_table.h"

#include "common/metrics/histogram.h"
#include "common/metrics/step_phases.h"
#include "common/status.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Kind = Metric::Kind;
using Server = run::ServerStats;
using Worker = run::WorkerStats;
using OfRun = run::Summary;
using OfWorker = run::WorkerSummary;

// Sums of such numbers stay far from overflow.
constexpr int64_t kCountMax = int64_t{1} << 50;

constexpr Metric kServer[] = {
    {Server::kPushesFieldNumber, Kind::kCounter, "pushes_total",
     "Gradients of one shard that were accepted",
     /*folds=*/true, OfRun::kPushesFieldNumber},
    {Server::kPullsFieldNumber, Kind::kCounter, "pulls_total",
     "Pulls of one shard that were answered"},
    {Server::kUpdatesFieldNumber, Kind::kCounter, "updates_total",
     "Applications of the optimizer to a shard"},
    {Server::kAppliedFieldNumber, Kind::kCounter, "gradients_applied_total",
     "Gradients of one shard that updates have read",
     /*folds=*/true, OfRun::kAppliedFieldNumber},
    {Server::kDroppedFieldNumber, Kind::kCounter, "gradients_dropped_total",
     "Gradients of one shard that were too late or too stale to be applied",
     /*folds=*/true, OfRun::kDroppedFieldNumber},
    {Server::kHeldFieldNumber, Kind::kGauge, "gradients_held",
     "Gradients of one shard that wait for their clock",
     /*folds=*/true, OfRun::kHeldFieldNumber},
    {Server::kDuplicatesFieldNumber, Kind::kCounter, "duplicates_total",
     "Pushes that were there already, and did not count again",
     /*folds=*/true, OfRun::kDuplicatesFieldNumber},
    {Server::kMalformedFieldNumber, Kind::kCounter, "malformed_total",
     "Messages that were none, and connections with too much unread"},
    {Server::kBytesInFieldNumber, Kind::kCounter, "received_bytes_total",
     "Payload of pushes"},
    {Server::kBytesOutFieldNumber, Kind::kCounter, "sent_bytes_total",
     "Payload of answers to pulls"},
    {Server::kBytesToFollowersFieldNumber, Kind::kCounter,
     "replication_bytes_total", "Payload to copies, repetitions included",
     /*folds=*/true, OfRun::kBytesToFollowersFieldNumber},
    {Server::kBytesToFollowersResentFieldNumber, Kind::kCounter,
     "replication_resent_bytes_total", "Payload to copies that was repeated",
     /*folds=*/true, OfRun::kBytesToFollowersResentFieldNumber},
    {Server::kShardsFieldNumber, Kind::kGauge, "shards",
     "Shards that are served here"},
    {Server::kCopiesFieldNumber, Kind::kGauge, "copies",
     "Copies of shards of other servers"},
    {Server::kPullsParkedFieldNumber, Kind::kGauge, "pulls_waiting",
     "Pulls that wait for the clock that they may read"},
    {Server::kAnswersHeldFieldNumber, Kind::kGauge, "answers_waiting",
     "Answers that wait until copies have what they say"},
    {Server::kIoUtilisationFieldNumber, Kind::kGauge, "io_busy_ratio",
     "Share of the time in which the busiest thread that moves bytes works",
     /*folds=*/false},
    {Server::kMissedClocksFieldNumber, Kind::kHistogram, "staleness_clocks",
     "Clocks that an applied or held gradient has missed"},
    {Server::kMissedUpdatesFieldNumber, Kind::kHistogram, "staleness_updates",
     "Versions between the one that a gradient was computed from and the one "
     "that it came to"},
    {Server::kLeadFieldNumber, Kind::kHistogram, "lead_clocks",
     "Clocks by which a step was ahead of what all workers had completed when "
     "it pulled"},
    {Server::kPhaseSecondsFieldNumber, Kind::kByPhase, "phase_seconds_total",
     "Time of all shard threads, by what they do; the rest is idle",
     /*folds=*/true, OfRun::kServerPhaseSecondsFieldNumber},
};

constexpr Metric kWorker[] = {
    // The coordinator bounds it by the steps of the job.
    {Worker::kClockFieldNumber, Kind::kCounter, "steps_total",
     "Steps that are complete, or count as such", /*folds=*/false, /*of_run=*/0,
     OfWorker::kStepsFieldNumber},
    {Worker::kExamplesFieldNumber, Kind::kCounter, "examples_total",
     "Examples trained on",
     /*folds=*/true, /*of_run=*/0, OfWorker::kExamplesFieldNumber},
    // It may be anything.
    {Worker::kTrainLossFieldNumber, Kind::kGauge, "train_loss",
     "Decayed mean of the losses of minibatches", /*folds=*/false},
    {Worker::kBytesPushedFieldNumber, Kind::kCounter, "pushed_bytes_total",
     "Payload of pushes, first sends only",
     /*folds=*/true, OfRun::kBytesPushedFieldNumber,
     OfWorker::kBytesPushedFieldNumber},
    {Worker::kBytesResentFieldNumber, Kind::kCounter, "resent_bytes_total",
     "Payload of pushes that were sent again",
     /*folds=*/true, OfRun::kBytesResentFieldNumber,
     OfWorker::kBytesResentFieldNumber},
    {Worker::kBytesPulledFieldNumber, Kind::kCounter, "pulled_bytes_total",
     "Payload of pulls",
     /*folds=*/true, OfRun::kBytesPulledFieldNumber,
     OfWorker::kBytesPulledFieldNumber},
    {Worker::kRetriesFieldNumber, Kind::kCounter, "retries_total",
     "Messages that were sent again",
     /*folds=*/true, OfRun::kRetriesFieldNumber},
    {Worker::kComputeSecondsFieldNumber, Kind::kCounter,
     "compute_seconds_total", "Time in the worker's own work",
     /*folds=*/true, /*of_run=*/0, OfWorker::kComputeSecondsFieldNumber},
    {Worker::kWaitSecondsFieldNumber, Kind::kCounter, "wait_seconds_total",
     "Time at pulls, collectives and all-reduce",
     /*folds=*/true, /*of_run=*/0, OfWorker::kWaitSecondsFieldNumber},
    {Worker::kNonfiniteFieldNumber, Kind::kCounter, "nonfinite_total",
     "Steps by all-reduce in which the gradient had a NaN or an infinity"},
    {Worker::kPhaseSecondsFieldNumber, Kind::kByPhase, "phase_seconds_total",
     "Time of the worker, by the phase of its steps",
     /*folds=*/true, /*of_run=*/0, OfWorker::kPhaseSecondsFieldNumber},
};

const FieldDescriptor& FieldOf(const Message& message, int number) {
  const FieldDescriptor* const field =
      message.GetDescriptor()->FindFieldByNumber(number);
  SL_CHECK(field != nullptr, "a metric is a field of its message");
  return *field;
}

// Adds a field of one message to one of another, which is of the same type.
void Add(const Message& from, const FieldDescriptor& field, Message* to,
         const FieldDescriptor& sum) {
  const Reflection& read = *from.GetReflection();
  const Reflection& write = *to->GetReflection();
  SL_CHECK(field.cpp_type() == sum.cpp_type() &&
               field.message_type() == sum.message_type(),
           "a metric is of one type wherever it is");
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return write.SetUInt64(
          to, &sum, write.GetUInt64(*to, &sum) + read.GetUInt64(from, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return write.SetInt64(
          to, &sum, write.GetInt64(*to, &sum) + read.GetInt64(from, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return write.SetInt32(
          to, &sum, write.GetInt32(*to, &sum) + read.GetInt32(from, &field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return write.SetDouble(
          to, &sum, write.GetDouble(*to, &sum) + read.GetDouble(from, &field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (field.message_type() != run::Histogram::descriptor()) {
        return AddPhases(read.GetMessage(from, &field),
                         write.MutableMessage(to, &sum));
      }
      return MergeHistogram(
          static_cast<const run::Histogram&>(read.GetMessage(from, &field)),
          static_cast<run::Histogram*>(write.MutableMessage(to, &sum)));
    default:
      SL_CHECK(false, "a metric is a number, phases or a histogram");
  }
}

}  // namespace

absl::Span<const Metric> ServerMetrics() { return kServer; }
absl::Span<const Metric> WorkerMetrics() { return kWorker; }

const run::Histogram& MetricHistogram(const Message& stats,
                                      const Metric& metric) {
  return static_cast<const run::Histogram&>(
      stats.GetReflection()->GetMessage(stats, &FieldOf(stats, metric.field)));
}

std::vector<std::pair<std::string, double>> MetricPhases(const Message& stats,
                                                         const Metric& metric) {
  return PhasesOf(
      stats.GetReflection()->GetMessage(stats, &FieldOf(stats, metric.field)));
}

double MetricValue(const Message& stats, const Metric& metric) {
  const FieldDescriptor& field = FieldOf(stats, metric.field);
  const Reflection& read = *stats.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(read.GetUInt64(stats, &field));
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(read.GetInt64(stats, &field));
    case FieldDescriptor::CPPTYPE_INT32:
      return read.GetInt32(stats, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return read.GetDouble(stats, &field);
    default:
      SL_CHECK(false, "a metric is a number");
      return 0;
  }
}

void AddToSummary(absl::Span<const Metric> metrics, const Message& stats,
                  run::Summary* summary) {
  for (const Metric& metric : metrics) {
    if (metric.of_run == 0) continue;
    Add(stats, FieldOf(stats, metric.field), summary,
        FieldOf(*summary, metric.of_run));
  }
}

void PutIntoSummary(const run::WorkerStats& stats, run::WorkerSummary* worker) {
  for (const Metric& metric : kWorker) {
    if (metric.of_worker == 0) continue;
    const FieldDescriptor& field = FieldOf(*worker, metric.of_worker);
    worker->GetReflection()->ClearField(worker, &field);
    Add(stats, FieldOf(stats, metric.field), worker, field);
  }
}

void FoldMetrics(absl::Span<const Metric> metrics, const Message& from,
                 Message* to) {
  for (const Metric& metric : metrics) {
    if (!metric.folds) continue;
    const FieldDescriptor& field = FieldOf(from, metric.field);
    Add(from, field, to, field);
  }
}

bool AreFigures(absl::Span<const Metric> metrics, const Message& stats) {
  const Reflection& read = *stats.GetReflection();
  for (const Metric& metric : metrics) {
    if (!metric.folds) continue;
    const FieldDescriptor& field = FieldOf(stats, metric.field);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT64: {
        const int64_t value = read.GetInt64(stats, &field);
        if (value < 0 || value > kCountMax) return false;
        break;
      }
      case FieldDescriptor::CPPTYPE_INT32:
        if (read.GetInt32(stats, &field) < 0) return false;
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (!IsAmount(read.GetDouble(stats, &field))) return false;
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (metric.kind == Kind::kByPhase) {
          if (!AreSeconds(read.GetMessage(stats, &field))) return false;
          break;
        }
        if (MetricHistogram(stats, metric).bin_size() > kHistogramBinsMax)
          return false;
        break;
      default:
        break;
    }
  }
  return true;
}

}  // namespace slackline
