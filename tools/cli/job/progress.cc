#include "tools/cli/job/progress.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/metrics/histogram.h"
#include "common/some_names.h"
#include "common/sync/phases.h"
#include "tools/cli/job/mode_text.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

// Long enough to smooth out single steps, short enough to show a change.
constexpr absl::Duration kRateWindow = absl::Seconds(5);
constexpr char kElapsed[] = " elapsed";
constexpr char kBetween[] = "  ";

run::Histogram StalenessOf(const wire::StatusReply& status) {
  run::Histogram all;
  for (const run::ServerStats& server : status.server()) {
    MergeHistogram(server.missed_clocks(), &all);
  }
  return all;
}

const run::MetricRecord* LatestEvaluation(const wire::StatusReply& status) {
  for (const run::MetricRecord& record : status.latest()) {
    if (record.kind() == run::MetricRecord::EVAL) return &record;
  }
  return nullptr;
}

// Mean over the workers that have trained; false if there is none.
bool MeanLoss(const wire::StatusReply& status, double* loss) {
  double sum = 0;
  int workers = 0;
  for (const run::WorkerStats& worker : status.worker()) {
    if (worker.examples() == 0) continue;
    sum += worker.train_loss();
    ++workers;
  }
  if (workers == 0) return false;
  *loss = sum / workers;
  return true;
}

}  // namespace

std::string StateName(wire::JobState state) {
  switch (state) {
    case wire::FORMING:
      return "forming";
    case wire::RUNNING:
      return "running";
    case wire::FINISHED:
      return "finished";
    case wire::FAILED:
      return "failed";
    default:
      return "?";
  }
}

int CountTrained(const wire::StatusReply& status) {
  const auto trained = [&](const run::WorkerStats& worker) {
    return worker.done() || HasTrained(worker.progress(), status.view());
  };
  return static_cast<int>(
      std::count_if(status.worker().begin(), status.worker().end(), trained));
}

void RateMeter::Add(absl::Time now, double total) {
  if (!samples_.empty() && total < samples_.back().second) samples_.clear();
  // The time before the beginning is not part of it.
  if (!samples_.empty() && samples_.back().second == 0) samples_.clear();
  samples_.emplace_back(now, total);
  // Keeps one sample from before the window, so that it is always covered.
  while (samples_.size() > 2 && now - samples_[1].first >= kRateWindow) {
    samples_.pop_front();
  }
}

double RateMeter::PerSecond() const {
  if (samples_.size() < 2) return 0;
  const double seconds =
      absl::ToDoubleSeconds(samples_.back().first - samples_.front().first);
  if (seconds <= 0) return 0;
  return (samples_.back().second - samples_.front().second) / seconds;
}

double SecondsLeft(int64_t step, int64_t total, double elapsed_seconds) {
  if (step >= total) return 0;
  if (step <= 0) return std::numeric_limits<double>::infinity();
  return elapsed_seconds * static_cast<double>(total - step) /
         static_cast<double>(step);
}

void Progress::Update(const wire::StatusReply& status, absl::Time now) {
  status_ = status;
  double examples = 0, bytes = 0;
  for (const run::WorkerStats& worker : status.worker()) {
    examples += static_cast<double>(worker.examples());
    bytes += static_cast<double>(worker.bytes_pushed() + worker.bytes_pulled());
  }
  examples_.Add(now, examples);
  bytes_.Add(now, bytes);
  const run::MetricRecord* const evaluation = LatestEvaluation(status);
  if (evaluation == nullptr || evaluation->step() == last_evaluation_step_) {
    return;
  }
  last_evaluation_step_ = evaluation->step();
  std::vector<std::string> figures;
  if (evaluation->has_loss())
    figures.push_back(absl::StrFormat("test loss %.4f", evaluation->loss()));
  if (evaluation->has_accuracy()) {
    figures.push_back(
        absl::StrCat("test accuracy ", PercentText(evaluation->accuracy(), 2)));
  }
  const std::map<std::string, double> others(evaluation->value().begin(),
                                             evaluation->value().end());
  for (const auto& [name, value] : others)
    figures.push_back(absl::StrFormat("%s %.4g", name, value));
  evaluations_.push_back(absl::StrFormat(
      "epoch %.4g, step %d: %s (%s)", evaluation->epoch(), evaluation->step(),
      absl::StrJoin(figures, ", "), DurationText(evaluation->seconds())));
}

int64_t Progress::SlowestClock() const {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const run::WorkerStats& worker : status_.worker()) {
    slowest = std::min(slowest, worker.clock());
  }
  return status_.worker().empty() ? 0 : slowest;
}

std::vector<std::string> Progress::MainFigures() const {
  const wire::View& view = status_.view();
  std::vector<std::string> figures;
  const std::string mode = ModeOutlook(status_);
  if (!mode.empty()) figures.push_back(mode);
  if (view.state() == wire::FORMING) {
    const int missing = status_.missing_size();
    figures.push_back(missing == 0
                          ? "starting"
                          : absl::StrCat("waiting for ",
                                         SomeNames({status_.missing().begin(),
                                                    status_.missing().end()})));
    return figures;
  }
  const int64_t step = SlowestClock();
  // Of a job that goes on from a checkpoint, where that is.
  int64_t begun = 0;
  for (const wire::WorkerMember& worker : view.worker())
    begun = std::max(begun, worker.begins_at());
  // Of a job that is ended early, where it ends.
  const int64_t total =
      view.end_clock() > 0 ? view.end_clock() : view.steps_total();
  if (total > 0) {
    figures.push_back(absl::StrCat(
        "step ", step, "/", total, " ",
        PercentText(static_cast<double>(step) / static_cast<double>(total),
                    0)));
  } else {
    figures.push_back(absl::StrCat("step ", step));
  }
  double loss = 0;
  if (MeanLoss(status_, &loss)) {
    figures.push_back(absl::StrFormat("loss %.4f", loss));
  }
  const bool done =
      !status_.worker().empty() &&
      std::all_of(status_.worker().begin(), status_.worker().end(),
                  [](const run::WorkerStats& worker) { return worker.done(); });
  const bool trained = CountTrained(status_) == status_.worker_size();
  if (view.state() != wire::RUNNING) {
    figures.push_back(StateName(view.state()));
  } else if (done || (total > 0 && step >= total)) {
    // Of those who have trained some may not ask what comes next for long.
    figures.push_back(trained && !done ? "scripts at work" : "evaluating");
  } else if (step > begun && total > 0) {
    figures.push_back(
        absl::StrCat(DurationText(SecondsLeft(step - begun, total - begun,
                                              status_.run_seconds())),
                     " left"));
  }
  return figures;
}

std::vector<std::string> Progress::Figures() const {
  const wire::View& view = status_.view();
  std::vector<std::string> figures = MainFigures();
  if (view.state() == wire::FORMING) return figures;
  const run::MetricRecord* const evaluation = LatestEvaluation(status_);
  if (evaluation != nullptr && evaluation->has_accuracy()) {
    figures.push_back(
        absl::StrCat("accuracy ", PercentText(evaluation->accuracy(), 2)));
  }
  figures.push_back(
      absl::StrCat(CountText(examples_.PerSecond()), " examples/s"));
  if (ModeName(view) != "allreduce") {
    const run::Histogram staleness = StalenessOf(status_);
    figures.push_back(absl::StrCat("staleness ",
                                   HistogramPercentile(staleness, 0.5), " max ",
                                   staleness.max()));
  }
  figures.push_back(absl::StrCat(BytesText(bytes_.PerSecond()), "/s"));
  figures.push_back(
      absl::StrCat(DurationText(status_.run_seconds()), kElapsed));
  return figures;
}

std::string Progress::Headline() const {
  return absl::StrJoin(MainFigures(), kBetween);
}

std::string Progress::Line() const {
  return absl::StrJoin(Figures(), kBetween);
}

bool Progress::IsLine(absl::string_view text) {
  return absl::StrContains(text, absl::StrCat(kBetween, "step ")) &&
         absl::EndsWith(text, kElapsed);
}

std::vector<std::string> Progress::Block(int width) const {
  std::vector<std::string> figures = Figures();
  while (figures.size() > 2 &&
         absl::StrJoin(figures, kBetween).size() > static_cast<size_t>(width)) {
    figures.pop_back();
  }
  std::vector<std::string> lines = {
      FitToWidth(absl::StrJoin(figures, kBetween), width)};
  if (status_.view().state() != wire::RUNNING) return lines;
  std::vector<const run::WorkerStats*> workers;
  for (const run::WorkerStats& worker : status_.worker()) {
    workers.push_back(&worker);
  }
  std::sort(workers.begin(), workers.end(),
            [](const run::WorkerStats* a, const run::WorkerStats* b) {
              return a->rank() < b->rank();
            });
  std::string clocks = "clocks as last heard";
  for (const run::WorkerStats* worker : workers) {
    absl::StrAppend(&clocks, kBetween, worker->rank(), ":");
    if (worker->done()) {
      clocks += "done";
    } else {
      absl::StrAppend(&clocks, worker->clock());
    }
  }
  lines.push_back(FitToWidth(clocks, width));
  return lines;
}

std::vector<std::string> Progress::TakeEvaluations() {
  return std::exchange(evaluations_, {});
}

}  // namespace slackline
