#include "tools/experiment/ablation.h"

#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status.h"
#include "tools/experiment/variant_names.h"

namespace slackline {
namespace {

constexpr int64_t kSeedsMax = 1000;

// "sync.ssp.staleness" gives "staleness".
std::string LastFieldPart(absl::string_view field) {
  return FileSafe(field.substr(field.rfind('.') + 1));
}

// "FIELD=VALUE,VALUE" of a flag, which `origin` shows in full.
void ReadAxis(const std::string& origin, const std::string& text,
              experiment::Axis* axis, std::vector<std::string>* problems) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems->push_back(
        absl::StrCat(origin, ": is not of the form FIELD=VALUE,VALUE, as in ",
                     "sync.ssp.staleness=0,3,inf"));
    return;
  }
  axis->set_field(std::string(
      absl::StripAsciiWhitespace(absl::string_view(text).substr(0, equals))));
  for (const std::string& value :
       SplitValues(absl::string_view(text).substr(equals + 1))) {
    axis->add_value(value);
  }
}

}  // namespace

std::vector<std::string> SplitValues(absl::string_view text) {
  std::vector<std::string> values;
  int depth = 0;
  size_t begin = 0;
  const auto take = [&](size_t end) {
    values.push_back(std::string(
        absl::StripAsciiWhitespace(text.substr(begin, end - begin))));
    begin = end + 1;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '[') ++depth;
    if (text[i] == '}' || text[i] == ']') --depth;
    if (text[i] == ',' && depth == 0) take(i);
  }
  take(text.size());
  return values;
}

absl::StatusOr<std::vector<int64_t>> ParseSeeds(absl::string_view flag,
                                                absl::string_view text,
                                                int64_t first_seed) {
  const auto wrong = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        flag, ": value is '", text, "'; a number of seeds (3), a list (4,8) ",
        "or ranges (7-9), at most ", kSeedsMax, " seeds, are required"));
  };
  std::vector<int64_t> seeds;
  int64_t count = 0;
  if (absl::SimpleAtoi(text, &count)) {
    if (count < 1 || count > kSeedsMax) return wrong();
    for (int64_t i = 0; i < count; ++i) seeds.push_back(first_seed + i);
    return seeds;
  }
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const size_t dash = part.find('-');
    int64_t first = 0, last = 0;
    if (!absl::SimpleAtoi(part.substr(0, dash), &first) || first < 0) {
      return wrong();
    }
    last = first;
    if (dash != absl::string_view::npos &&
        !absl::SimpleAtoi(part.substr(dash + 1), &last)) {
      return wrong();
    }
    if (last < first || last - first >= kSeedsMax) return wrong();
    for (int64_t seed = first; seed <= last; ++seed) seeds.push_back(seed);
    if (seeds.size() > static_cast<size_t>(kSeedsMax)) return wrong();
  }
  return seeds;
}

absl::StatusOr<ExperimentSource> MakeAblation(const AblationOptions& options) {
  ExperimentSource source{
      .experiment = {}, .origins = FieldOrigins("ablate"), .folder = ""};
  experiment::Experiment& experiment = source.experiment;
  FieldOrigins& origins = source.origins;
  experiment.set_base(options.base);
  origins.Set("base", options.base);
  std::vector<std::string> problems;
  std::vector<std::string> fields;
  for (const std::string& over : options.over) {
    const std::string origin = absl::StrCat("--over ", over);
    origins.Set(absl::StrCat("over[", experiment.over_size(), "]"), origin);
    ReadAxis(origin, over, experiment.add_over(), &problems);
    fields.push_back(experiment.over().rbegin()->field());
  }
  origins.Set("over", "--over");
  for (const std::string& over : options.tune) {
    const std::string origin = absl::StrCat("--tune ", over);
    origins.Set(absl::StrCat("tune.over[", experiment.tune().over_size(), "]"),
                origin);
    ReadAxis(origin, over, experiment.mutable_tune()->add_over(), &problems);
  }
  origins.Set("tune", "--tune");
  if (options.tune.empty() &&
      !(options.tune_seeds.empty() && options.tune_sets.empty())) {
    problems.push_back(absl::StrCat(
        options.tune_seeds.empty() ? "--tune-set" : "--tune-seeds",
        ": is for --tune, which is not there; give what is to be tuned, as in "
        "--tune rate_factor=0.25,0.5,1,2"));
  }
  if (!problems.empty()) {
    return absl::InvalidArgumentError(absl::StrJoin(problems, "\n"));
  }
  if (experiment.has_tune()) {
    experiment::Tune* const tune = experiment.mutable_tune();
    *tune->mutable_seed() = {options.tune_seeds.begin(),
                             options.tune_seeds.end()};
    for (int i = 0; i < tune->seed_size(); ++i) {
      origins.Set(absl::StrCat("tune.seed[", i, "]"), "--tune-seeds");
    }
    *tune->mutable_set() = {options.tune_sets.begin(), options.tune_sets.end()};
  }
  *experiment.mutable_set() = {options.sets.begin(), options.sets.end()};
  if (!options.mode.empty() || !options.replay.empty() ||
      !options.delays.empty()) {
    experiment::Variant* const variant = experiment.add_variant();
    if (!options.mode.empty()) variant->set_mode(options.mode);
    if (!options.replay.empty()) variant->set_replay(options.replay);
    if (!options.delays.empty()) variant->set_delays(options.delays);
    origins.Set("variant[0]", "ablate");
  }
  *experiment.mutable_seed() = {options.seeds.begin(), options.seeds.end()};
  origins.Set("seed", "--seeds");
  if (!options.baseline.empty()) experiment.set_baseline(options.baseline);
  origins.Set("baseline", "--baseline");
  experiment.set_name(
      !options.name.empty()
          ? options.name
          : absl::StrCat(
                FileSafe(std::filesystem::path(options.base).stem().string()),
                "-",
                absl::StrJoin(fields, "-",
                              [](std::string* text, const std::string& field) {
                                absl::StrAppend(text, LastFieldPart(field));
                              })));
  origins.Set("name", "--name");
  experiment.set_title(
      !options.title.empty()
          ? options.title
          : absl::StrCat("Ablation of ", absl::StrJoin(fields, " and ")));
  if (options.stop_accuracy.has_value()) {
    experiment.mutable_stop()->set_test_accuracy(*options.stop_accuracy);
  }
  if (options.stop_loss.has_value()) {
    experiment.mutable_stop()->set_test_loss(*options.stop_loss);
  }
  if (options.target_accuracy.has_value()) {
    experiment.mutable_target()->set_test_accuracy(*options.target_accuracy);
    origins.Set("target.test_accuracy", "--target-accuracy");
  }
  if (options.target_loss.has_value()) {
    experiment.mutable_target()->set_test_loss(*options.target_loss);
    origins.Set("target.test_loss", "--target-loss");
  }
  experiment.set_parallel(options.parallel);
  origins.Set("parallel", "--parallel");
  SL_RETURN_IF_ERROR(CheckExperiment(experiment, origins));
  return source;
}

}  // namespace slackline
