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
using Form = StatusColumn::Form;
using Server = run::ServerStats;
using Worker = run::WorkerStats;
using OfRun = run::Summary;
using OfWorker = run::WorkerSummary;

constexpr Metric kServer[] = {
    {.field = Server::kPushesFieldNumber,
     .kind = Kind::kCounter,
     .name = "pushes_total",
     .help = "Gradients of one shard that were accepted",
     .of_run = OfRun::kPushesFieldNumber,
     .column = {"pushes", Form::kCount}},
    {.field = Server::kPullsFieldNumber,
     .kind = Kind::kCounter,
     .name = "pulls_total",
     .help = "Pulls of one shard that were answered",
     .column = {"pulls", Form::kCount}},
    {.field = Server::kPullsParkedFieldNumber,
     .kind = Kind::kGauge,
     .name = "pulls_waiting",
     .help = "Pulls that wait for the clock that they may read",
     .column = {"parked"}},
    {.field = Server::kUpdatesFieldNumber,
     .kind = Kind::kCounter,
     .name = "updates_total",
     .help = "Applications of the optimizer to a shard"},
    {.field = Server::kAppliedFieldNumber,
     .kind = Kind::kCounter,
     .name = "gradients_applied_total",
     .help = "Gradients of one shard that updates have read",
     .of_run = OfRun::kAppliedFieldNumber},
    {.field = Server::kDroppedFieldNumber,
     .kind = Kind::kCounter,
     .name = "gradients_dropped_total",
     .help =
         "Gradients of one shard that were too late or too stale to be applied",
     .of_run = OfRun::kDroppedFieldNumber},
    {.field = Server::kHeldFieldNumber,
     .kind = Kind::kGauge,
     .name = "gradients_held",
     .help = "Gradients of one shard that wait for their clock",
     .of_run = OfRun::kHeldFieldNumber},
    {.field = Server::kDuplicatesFieldNumber,
     .kind = Kind::kCounter,
     .name = "duplicates_total",
     .help = "Pushes that were there already, and did not count again",
     .of_run = OfRun::kDuplicatesFieldNumber},
    {.field = Server::kMissedClocksFieldNumber,
     .kind = Kind::kHistogram,
     .name = "staleness_clocks",
     .help = "Clocks that an applied or held gradient has missed",
     .column = {"staleness", Form::kPercentiles}},
    {.field = Server::kMissedUpdatesFieldNumber,
     .kind = Kind::kHistogram,
     .name = "staleness_updates",
     .help = "Versions between the one that a gradient was computed from and "
             "the one that it came to"},
    {.field = Server::kLeadFieldNumber,
     .kind = Kind::kHistogram,
     .name = "lead_clocks",
     .help = "Clocks by which a step was ahead of what all workers had "
             "completed when it pulled"},
    {.field = Server::kBytesInFieldNumber,
     .kind = Kind::kCounter,
     .name = "received_bytes_total",
     .help = "Payload of pushes",
     .column = {"in", Form::kBytes}},
    {.field = Server::kBytesOutFieldNumber,
     .kind = Kind::kCounter,
     .name = "sent_bytes_total",
     .help = "Payload of answers to pulls",
     .column = {"out", Form::kBytes}},
    {.field = Server::kMalformedFieldNumber,
     .kind = Kind::kCounter,
     .name = "malformed_total",
     .help = "Messages that were none, and connections with too much unread",
     .column = {"malformed"}},
    {.field = Server::kShardsFieldNumber,
     .kind = Kind::kGauge,
     .name = "shards",
     .help = "Shards that are served here"},
    {.field = Server::kCopiesFieldNumber,
     .kind = Kind::kGauge,
     .name = "copies",
     .help = "Copies of shards of other servers",
     .column = {"copies", Form::kNumber, /*of_copies=*/true}},
    {.field = Server::kBytesToFollowersFieldNumber,
     .kind = Kind::kCounter,
     .name = "replication_bytes_total",
     .help = "Payload to copies, repetitions included",
     .of_run = OfRun::kBytesToFollowersFieldNumber,
     .column = {"to copies", Form::kBytes, /*of_copies=*/true}},
    {.field = Server::kBytesToFollowersResentFieldNumber,
     .kind = Kind::kCounter,
     .name = "replication_resent_bytes_total",
     .help = "Payload to copies that was repeated",
     .of_run = OfRun::kBytesToFollowersResentFieldNumber},
    {.field = Server::kAnswersHeldFieldNumber,
     .kind = Kind::kGauge,
     .name = "answers_waiting",
     .help = "Answers that wait until copies have what they say",
     .column = {"held", Form::kNumber, /*of_copies=*/true}},
    {.field = Server::kIoUtilisationFieldNumber,
     .kind = Kind::kGauge,
     .name = "io_busy_ratio",
     .help =
         "Share of the time in which the busiest thread that moves bytes works",
     .folds = false},
    {.field = Server::kPhaseSecondsFieldNumber,
     .kind = Kind::kByPhase,
     .name = "phase_seconds_total",
     .help = "Time of all shard threads, by what they do; the rest is idle",
     .of_run = OfRun::kServerPhaseSecondsFieldNumber},
};

constexpr Metric kWorker[] = {
    // The coordinator bounds it by the steps of the job.
    {.field = Worker::kClockFieldNumber,
     .kind = Kind::kCounter,
     .name = "steps_total",
     .help = "Steps that are complete, or count as such",
     .folds = false,
     .of_worker = OfWorker::kStepsFieldNumber},
    {.field = Worker::kExamplesFieldNumber,
     .kind = Kind::kCounter,
     .name = "examples_total",
     .help = "Examples trained on",
     .of_worker = OfWorker::kExamplesFieldNumber},
    // It may be anything.
    {.field = Worker::kTrainLossFieldNumber,
     .kind = Kind::kGauge,
     .name = "train_loss",
     .help = "Decayed mean of the losses of minibatches",
     .folds = false},
    {.field = Worker::kBytesPushedFieldNumber,
     .kind = Kind::kCounter,
     .name = "pushed_bytes_total",
     .help = "Payload of pushes, first sends only",
     .of_run = OfRun::kBytesPushedFieldNumber,
     .of_worker = OfWorker::kBytesPushedFieldNumber,
     .column = {"pushed", Form::kBytes}},
    {.field = Worker::kBytesResentFieldNumber,
     .kind = Kind::kCounter,
     .name = "resent_bytes_total",
     .help = "Payload of pushes that were sent again",
     .of_run = OfRun::kBytesResentFieldNumber,
     .of_worker = OfWorker::kBytesResentFieldNumber},
    {.field = Worker::kBytesPulledFieldNumber,
     .kind = Kind::kCounter,
     .name = "pulled_bytes_total",
     .help = "Payload of pulls",
     .of_run = OfRun::kBytesPulledFieldNumber,
     .of_worker = OfWorker::kBytesPulledFieldNumber,
     .column = {"pulled", Form::kBytes}},
    {.field = Worker::kRetriesFieldNumber,
     .kind = Kind::kCounter,
     .name = "retries_total",
     .help = "Messages that were sent again",
     .of_run = OfRun::kRetriesFieldNumber,
     .column = {"retries"}},
    {.field = Worker::kComputeSecondsFieldNumber,
     .kind = Kind::kCounter,
     .name = "compute_seconds_total",
     .help = "Time in the worker's own work",
     .of_worker = OfWorker::kComputeSecondsFieldNumber},
    {.field = Worker::kWaitSecondsFieldNumber,
     .kind = Kind::kCounter,
     .name = "wait_seconds_total",
     .help = "Time at pulls, collectives and all-reduce",
     .of_worker = OfWorker::kWaitSecondsFieldNumber},
    {.field = Worker::kNonfiniteFieldNumber,
     .kind = Kind::kCounter,
     .name = "nonfinite_total",
     .help =
         "Steps by all-reduce in which the gradient had a NaN or an infinity"},
    {.field = Worker::kPhaseSecondsFieldNumber,
     .kind = Kind::kByPhase,
     .name = "phase_seconds_total",
     .help = "Time of the worker, by the phase of its steps",
     .of_worker = OfWorker::kPhaseSecondsFieldNumber},
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
