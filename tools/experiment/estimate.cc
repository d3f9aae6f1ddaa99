#include "tools/experiment/estimate.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/config/cluster_config.h"

namespace slackline {
namespace {

struct Mean {
  double sum = 0;
  int count = 0;
  void Add(double value) {
    sum += value;
    ++count;
  }
  double value() const { return sum / count; }
};

}  // namespace

std::optional<double> SecondsByConditions(const config::ClusterConfig& config) {
  // A job that may stop early takes any time up to it.
  if (config.train().has_stop()) return std::nullopt;
  double step_ms = 0;
  for (const config::WorkerGroup& group : config.worker()) {
    step_ms =
        std::max(step_ms, group.conditions().step_ms() * group.slowdown());
  }
  if (step_ms <= 0 || !config.data().has_teacher_student()) return std::nullopt;
  const double examples = config.data().teacher_student().train_examples() *
                          config.train().epochs();
  double steps = examples / config.data().batch_size() /
                 static_cast<double>(WorkerProcesses(config).size());
  if (config.train().has_max_steps()) {
    steps = std::min(steps, static_cast<double>(config.train().max_steps()));
  }
  return steps * step_ms / 1000;
}

std::optional<double> EstimateSeconds(const ExperimentPlan& plan,
                                      const std::vector<int>& to_do,
                                      const std::map<int, double>& done) {
  std::map<int, Mean> by_variant;
  std::map<bool, Mean> by_kind;  // Whether it is a replay.
  for (const auto& [index, seconds] : done) {
    const int variant = plan.runs[index].variant;
    by_variant[variant].Add(seconds);
    by_kind[!plan.variants[variant].replay.empty()].Add(seconds);
  }
  double total = 0;
  double longest = 0;
  for (const int index : to_do) {
    const int variant = plan.runs[index].variant;
    const bool replay = !plan.variants[variant].replay.empty();
    std::optional<double> seconds;
    if (by_variant.count(variant) > 0) {
      seconds = by_variant[variant].value();
    } else if (by_kind.count(replay) > 0) {
      seconds = by_kind[replay].value();
    } else if (!replay) {
      seconds = SecondsByConditions(plan.runs[index].config);
    }
    if (!seconds.has_value()) return std::nullopt;
    total += *seconds;
    longest = std::max(longest, *seconds);
  }
  return std::max(longest, total / plan.experiment.parallel());
}

std::string EstimateText(std::optional<double> seconds) {
  if (!seconds.has_value()) {
    return "a time that is unknown until a run of each kind is done";
  }
  if (*seconds < 90) {
    return absl::StrFormat("about %d s", std::lround(*seconds));
  }
  if (*seconds < 90 * 60) {
    return absl::StrFormat("about %d min", std::lround(*seconds / 60));
  }
  return absl::StrFormat("about %.1f h", *seconds / 3600);
}

}  // namespace slackline
