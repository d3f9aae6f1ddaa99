#include "common/health/metrics_text.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/exposition.h"
#include "common/metrics/metric_table.h"
#include "common/sync/modes/mode.h"
#include "common/version.h"

namespace slackline {
namespace {

constexpr char kCounter[] = "counter";
constexpr char kGauge[] = "gauge";

void AddTable(absl::Span<const Metric> metrics,
              const google::protobuf::Message& stats, const std::string& prefix,
              const Exposition::Labels& labels, Exposition* page) {
  for (const Metric& metric : metrics) {
    const std::string name = absl::StrCat(prefix, metric.name);
    switch (metric.kind) {
      case Metric::Kind::kCounter:
      case Metric::Kind::kGauge:
        page->Begin(name,
                    metric.kind == Metric::Kind::kCounter ? kCounter : kGauge,
                    metric.help);
        page->Add(MetricValue(stats, metric), labels);
        break;
      case Metric::Kind::kHistogram:
        page->Begin(name, "histogram", metric.help);
        page->Add(MetricHistogram(stats, metric), labels);
        break;
      case Metric::Kind::kByPhase:
        page->Begin(name, kCounter, metric.help);
        for (const auto& [phase, seconds] : MetricPhases(stats, metric)) {
          Exposition::Labels of_phase = labels;
          of_phase.emplace_back("phase", phase);
          page->Add(seconds, of_phase);
        }
        break;
    }
  }
}

void AddOne(const std::string& name, const char* type, const char* help,
            double value, const Exposition::Labels& labels, Exposition* page) {
  page->Begin(name, type, help);
  page->Add(value, labels);
}

void AddRefusals(const run::Refusals& refusals, const Exposition::Labels& self,
                 Exposition* page) {
  page->Begin("slackline_server_refused_total", kCounter,
              "Connections and messages that keys do not allow, by reason");
  const google::protobuf::Descriptor& reasons = *refusals.GetDescriptor();
  for (int i = 0; i < reasons.field_count(); ++i) {
    Exposition::Labels labels = self;
    labels.emplace_back("reason", reasons.field(i)->name());
    page->Add(static_cast<double>(refusals.GetReflection()->GetUInt64(
                  refusals, reasons.field(i))),
              labels);
  }
}

void AddServer(const run::ServerStats& stats, const Exposition::Labels& self,
               Exposition* page) {
  AddTable(ServerMetrics(), stats, "slackline_server_", self, page);
  const auto per_thread = [&](const char* name, const char* help,
                              double (run::ThreadLoad::*value)() const,
                              double unit) {
    page->Begin(absl::StrCat("slackline_server_thread_", name), kGauge, help);
    for (const run::ThreadLoad& thread : stats.thread()) {
      Exposition::Labels labels = self;
      labels.emplace_back("thread", absl::StrCat(thread.thread()));
      page->Add((thread.*value)() * unit, labels);
    }
  };
  per_thread("busy_ratio", "Share of the time in which a shard thread works",
             &run::ThreadLoad::utilisation, 1);
  per_thread("queue_seconds",
             "Mean time that a message waits for those before it",
             &run::ThreadLoad::queue_ms, 1e-3);
  const auto by_worker = [&](const char* name, const char* help,
                             const auto& entries) {
    page->Begin(name, kCounter, help);
    for (const auto& of_worker : entries) {
      Exposition::Labels labels = self;
      labels.emplace_back("worker", absl::StrCat(of_worker.rank()));
      page->Add(static_cast<double>(of_worker.gradients()), labels);
    }
  };
  by_worker("slackline_server_nonfinite_total",
            "Gradients of one shard with a NaN or an infinity, by worker",
            stats.nonfinite());
  by_worker("slackline_server_oversized_total",
            "Gradients of one shard above train.gradient_bound, by worker",
            stats.oversized());
  AddRefusals(stats.refused(), self, page);
}

// One of several is 1, the others are 0.
template <typename Value>
void AddStates(const std::string& name, const char* help,
               const std::vector<std::pair<Value, const char*>>& states,
               Value now, const Exposition::Labels& self, Exposition* page) {
  page->Begin(name, kGauge, help);
  for (const auto& [state, text] : states) {
    Exposition::Labels labels = self;
    labels.emplace_back("state", text);
    page->Add(state == now ? 1 : 0, labels);
  }
}

void AddWorker(const run::WorkerStats& stats, const Exposition::Labels& self,
               Exposition* page) {
  AddTable(WorkerMetrics(), stats, "slackline_worker_", self, page);
  const run::WorkerProgress& progress = stats.progress();
  AddStates<run::WorkerProgress::Activity>(
      "slackline_worker_activity", "What the worker does: one of these is 1",
      {{run::WorkerProgress::WORKING, "working"},
       {run::WorkerProgress::WAITING_FOR_WORKERS, "waiting_for_workers"},
       {run::WorkerProgress::WAITING_FOR_SERVER, "waiting_for_server"},
       {run::WorkerProgress::WAITING_FOR_COORDINATOR,
        "waiting_for_coordinator"}},
      progress.activity(), self, page);
  AddOne("slackline_worker_without_progress_seconds", kGauge,
         "How long it has been in that without any progress",
         static_cast<double>(progress.for_ms()) * 1e-3, self, page);
}

void AddStragglers(const wire::StatusReply& status, Exposition* page) {
  if (status.slowness_size() > 0) {
    page->Begin("slackline_job_slowness_ratio", kGauge,
                "Time of a worker for a step, without waiting, over the median "
                "of the others; 0: there is none");
  }
  for (const run::Slowness& slowness : status.slowness()) {
    page->Add(slowness.relative(), {{"worker", absl::StrCat(slowness.rank())}});
  }
  AddOne("slackline_job_stragglers", kGauge,
         "Alarms of `status`: workers and servers that are slower than the "
         "others, or than they were",
         status.straggler_size(), {}, page);
  const auto add_all = [&](bool of_servers, const char* name,
                           const char* help) {
    bool begun = false;
    for (const run::Straggler& straggler : status.straggler()) {
      if (straggler.has_server() != of_servers) continue;
      if (!begun) page->Begin(name, kGauge, help);
      begun = true;
      page->Add(
          straggler.times(),
          of_servers
              ? Exposition::Labels{{"server", absl::StrCat(straggler.server())}}
              : Exposition::Labels{
                    {"worker", straggler.has_rank()
                                   ? absl::StrCat(straggler.rank())
                                   : "all"},
                    {"phase", straggler.phase()}});
    }
  };
  add_all(
      /*of_servers=*/false, "slackline_job_straggler_ratio",
      "Of each alarm about workers: how many times slower it is, and where");
  add_all(/*of_servers=*/true, "slackline_job_slow_server_ratio",
          "Of each alarm about a server: how many times longer its answers "
          "take");
}

void AddJob(const wire::StatusReply& status, Exposition* page) {
  const wire::View& view = status.view();
  const std::string prefix = "slackline_job_";
  AddStates<wire::JobState>(prefix + "state", "One of these is 1",
                            {{wire::FORMING, "forming"},
                             {wire::RUNNING, "running"},
                             {wire::FINISHED, "finished"},
                             {wire::FAILED, "failed"}},
                            view.state(), {}, page);
  const auto gauge = [&](const char* name, const char* help, double value) {
    AddOne(prefix + name, kGauge, help, value, {}, page);
  };
  gauge("servers", "Servers in the job", view.server_size());
  gauge("workers", "Workers in the job", view.worker_size());
  gauge("missing_members", "Members that have not joined while the job forms",
        status.missing_size());
  gauge("run_seconds", "Since the job started to run", status.run_seconds());
  gauge("epoch", "The epoch of a worker that begins now",
        static_cast<double>(status.epoch()));
  AddOne(prefix + "moves_total", kCounter, "Moves of shards that were done",
         static_cast<double>(status.moves()), {}, page);
  gauge("moves_planned", "Moves of shards that are ordered or wait",
        status.plan().move_size());
  gauge("workers_held_up", "Sentences of `status` about who holds whom up",
        status.held_up_size());
  gauge("checkpoint_failed", "1: the last checkpoint was given up",
        status.checkpoint_failed().empty() ? 0 : 1);
  gauge("copies_missing", "1: shards lack copies that the config asks for",
        status.copies().empty() ? 0 : 1);
  if (status.has_last_checkpoint()) {
    gauge("checkpoint_step", "The step of the last checkpoint",
          static_cast<double>(status.last_checkpoint().clock()));
    gauge("checkpoint_run_seconds",
          "Since the job started to run, when the last checkpoint was taken",
          status.last_checkpoint().seconds());
  }
  AddStragglers(status, page);
  for (const run::MetricRecord& record : status.latest()) {
    if (record.kind() != run::MetricRecord::EVAL) continue;
    gauge("test_step", "The step of the last evaluation",
          static_cast<double>(record.step()));
    if (record.has_loss())
      gauge("test_loss", "Loss on the test set", record.loss());
    if (record.has_accuracy()) {
      gauge("test_accuracy_ratio", "Accuracy on the test set",
            record.accuracy());
    }
  }
  if (view.entered() >= 0 && view.entered() < view.phase_size()) {
    AddOne(prefix + "mode_info", kGauge, "The mode of the workers in it", 1,
           {{"mode",
             ModeText(view.phase(static_cast<int>(view.entered())).mode())}},
           page);
  }
}

void AddProcess(const ProcessFigures& process, Exposition* page) {
  const auto add = [&](const char* name, const char* type, const char* help,
                       double value) {
    AddOne(absl::StrCat("process_", name), type, help, value, {}, page);
  };
  add("cpu_seconds_total", kCounter, "Processor time, of the system's, too",
      process.cpu_seconds);
  add("resident_memory_bytes", kGauge, "Memory that is in use",
      process.resident_bytes);
  add("virtual_memory_bytes", kGauge, "Addresses that are in use",
      process.virtual_bytes);
  add("threads", kGauge, "Threads", process.threads);
  add("open_fds", kGauge, "Open files and sockets", process.open_files);
  add("max_fds", kGauge, "As many files and sockets as may be open",
      process.open_files_max);
}

}  // namespace

std::string MetricsText(const HealthFacts& facts,
                        const HealthBoard::Figures& figures,
                        const std::optional<ProcessFigures>& process) {
  Exposition page;
  const Exposition::Labels self = {{facts.role, absl::StrCat(facts.index)}};
  AddOne("slackline_build_info", kGauge, "Which program this is", 1,
         {{"version", VersionNumber()}, {"commit", BuildCommit()}}, &page);
  AddStates<HealthStage>("slackline_stage",
                         "How far the process is in its job: one is 1",
                         {{HealthStage::kStarting, "starting"},
                          {HealthStage::kJoining, "joining"},
                          {HealthStage::kTakingPart, "running"},
                          {HealthStage::kEnding, "ending"}},
                         facts.stage, self, &page);
  if (figures.server != nullptr) AddServer(*figures.server, self, &page);
  if (figures.worker != nullptr) AddWorker(*figures.worker, self, &page);
  if (figures.job != nullptr) AddJob(*figures.job, &page);
  if (process.has_value()) AddProcess(*process, &page);
  return page.Take();
}

}  // namespace slackline
