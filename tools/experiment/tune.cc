#include "tools/experiment/tune.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

using State = TryOutcome::State;

// Counts how the runs of `tried` have ended, and takes the mean if all are
// finished and have been measured.
void Summarise(absl::Span<const TryOutcome> outcomes, bool by_accuracy,
               TriedValues* tried) {
  double sum = 0;
  for (const int run : tried->runs) {
    const TryOutcome& outcome = outcomes[static_cast<size_t>(run)];
    switch (outcome.state) {
      case State::kMissing:
        ++tried->missing;
        break;
      case State::kDiverged:
        ++tried->diverged;
        break;
      case State::kFailed:
        ++tried->failed;
        break;
      case State::kFinished:
        sum += by_accuracy ? outcome.test_accuracy : outcome.test_loss;
        break;
    }
  }
  const bool all = tried->missing + tried->diverged + tried->failed == 0;
  if (all && std::isfinite(sum))
    tried->result = sum / static_cast<double>(tried->runs.size());
}

std::string ReasonOf(const std::vector<TriedValues>& tried) {
  int diverged = 0, failed = 0;
  for (const TriedValues& values : tried) {
    if (values.failed > 0) {
      ++failed;
    } else if (values.diverged > 0) {
      ++diverged;
    }
  }
  if (failed + diverged == 0) {
    return "its tries have measured neither test accuracy nor test loss; let "
           "its program evaluate";
  }
  if (failed == 0) {
    return absl::StrCat("it diverged with all ", tried.size(),
                        " values that were tried; try smaller ones");
  }
  return absl::StrCat("with ", failed, " of ", tried.size(),
                      " values its tries failed, and not by diverging, so the "
                      "best is not known; run.json of the tries says why, and "
                      "--retry-failed makes them again");
}

// What was tried in one axis, as far as it is numbers.
std::set<double> NumbersOf(const TunedVariant& variant, size_t axis) {
  std::set<double> numbers;
  for (const TriedValues& tried : variant.tried) {
    double number = 0;
    if (absl::SimpleAtod(tried.values[axis].second, &number))
      numbers.insert(number);
  }
  return numbers;
}

}  // namespace

std::vector<std::optional<AxisValues>> Tuning::Chosen() const {
  std::vector<std::optional<AxisValues>> chosen;
  for (const TunedVariant& variant : variants) {
    chosen.emplace_back();
    if (variant.chosen.has_value()) {
      chosen.back() =
          variant.tried[static_cast<size_t>(*variant.chosen)].values;
    }
  }
  return chosen;
}

Tuning Tune(const ExperimentPlan& tries, absl::Span<const TryOutcome> outcomes,
            int variants) {
  Tuning tuning;
  tuning.by_accuracy = std::none_of(
      outcomes.begin(), outcomes.end(), [](const TryOutcome& outcome) {
        return outcome.state == State::kFinished &&
               !std::isfinite(outcome.test_accuracy);
      });
  std::vector<TriedValues> tried;  // By variant of the tries.
  for (const PlannedVariant& variant : tries.variants)
    tried.push_back({.values = variant.tuned, .runs = {}, .result = {}});
  for (size_t i = 0; i < tries.runs.size(); ++i) {
    tried[static_cast<size_t>(tries.runs[i].variant)].runs.push_back(
        static_cast<int>(i));
  }
  tuning.variants.resize(static_cast<size_t>(variants));
  for (size_t i = 0; i < tried.size(); ++i) {
    Summarise(outcomes, tuning.by_accuracy, &tried[i]);
    tuning.variants[static_cast<size_t>(tries.variants[i].experiment_variant)]
        .tried.push_back(std::move(tried[i]));
  }
  for (TunedVariant& variant : tuning.variants) {
    const bool complete = std::all_of(
        variant.tried.begin(), variant.tried.end(),
        [](const TriedValues& values) { return values.missing == 0; });
    if (!complete) continue;
    const bool any_failed = std::any_of(
        variant.tried.begin(), variant.tried.end(),
        [](const TriedValues& values) { return values.failed > 0; });
    if (any_failed) {  // By bad luck, perhaps, and of the best.
      variant.left_out = ReasonOf(variant.tried);
      continue;
    }
    std::optional<double> best;
    for (size_t i = 0; i < variant.tried.size(); ++i) {
      const std::optional<double>& result = variant.tried[i].result;
      if (!result.has_value()) continue;
      if (best.has_value() &&
          (tuning.by_accuracy ? *result <= *best : *result >= *best)) {
        continue;
      }
      best = result;
      variant.chosen = static_cast<int>(i);
    }
    if (!variant.chosen.has_value()) {
      variant.left_out = ReasonOf(variant.tried);
      continue;
    }
    variant.at_edge = !EdgeTexts(variant).empty();
  }
  return tuning;
}

std::vector<std::string> EdgeTexts(const TunedVariant& variant) {
  std::vector<std::string> texts;
  if (!variant.chosen.has_value()) return texts;
  const AxisValues& chosen =
      variant.tried[static_cast<size_t>(*variant.chosen)].values;
  for (size_t axis = 0; axis < chosen.size(); ++axis) {
    const std::set<double> numbers = NumbersOf(variant, axis);
    double number = 0;
    if (numbers.size() < 2 || !absl::SimpleAtod(chosen[axis].second, &number))
      continue;
    const bool smallest = number == *numbers.begin();
    if (!smallest && number != *numbers.rbegin()) continue;
    texts.push_back(absl::StrCat(chosen[axis].first, "=", chosen[axis].second,
                                 " is the ", smallest ? "smallest" : "largest",
                                 " value that was tried; try ",
                                 smallest ? "smaller" : "larger", " ones"));
  }
  return texts;
}

}  // namespace slackline
