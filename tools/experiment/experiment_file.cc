#include "tools/experiment/experiment_file.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/cluster_config.h"
#include "common/config/parse_text.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int kParallelMax = 64;

constexpr absl::string_view kNameForm =
    "letters, digits, '-', '_' and '.' (not first) are required";

class Checker {
 public:
  Checker(const experiment::Experiment& experiment, const FieldOrigins& origins)
      : experiment_(experiment), origins_(origins) {}

  absl::Status Check() {
    CheckTop();
    for (int i = 0; i < experiment_.variant_size(); ++i) CheckVariant(i);
    for (int i = 0; i < experiment_.over_size(); ++i) {
      CheckAxis(absl::StrCat("over[", i, "]"), experiment_.over(i));
    }
    if (experiment_.has_tune()) CheckTune();
    CheckTarget();
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void Problem(const std::string& path, absl::string_view text) {
    problems_.push_back(
        absl::StrCat(origins_.Nearest(path), ": ", path, ": ", text));
  }

  void CheckName(const std::string& path, const std::string& name) {
    if (IsExperimentName(name)) return;
    Problem(path, absl::StrCat("value is '", name, "'; at most ", kNameMax, " ",
                               kNameForm));
  }

  void CheckTop() {
    if (!experiment_.has_name()) {
      Problem("name", absl::StrCat("is required; ", kNameForm));
    } else {
      CheckName("name", experiment_.name());
    }
    if (experiment_.base().empty()) {
      Problem("base",
              "is required: the path of a cluster config, relative to "
              "this file");
    }
    if (experiment_.variant_size() == 0 && experiment_.over_size() == 0) {
      Problem("variant",
              "there is none; at least one 'variant {}' or 'over {}' "
              "is required");
    }
    CheckSeeds("seed", experiment_.seed());
    if (experiment_.parallel() < 1 || experiment_.parallel() > kParallelMax) {
      Problem("parallel",
              absl::StrCat("value is ", experiment_.parallel(), "; 1 to ",
                           kParallelMax, " is required"));
    }
  }

  void CheckSeeds(
      const std::string& path,
      const google::protobuf::RepeatedField<google::protobuf::int64>& seeds) {
    std::set<int64_t> seen;
    for (int i = 0; i < seeds.size(); ++i) {
      if (seen.insert(seeds[i]).second) continue;
      Problem(absl::StrCat(path, "[", i, "]"),
              absl::StrCat("value is ", seeds[i],
                           " for the second time; each seed is run once"));
    }
  }

  void CheckVariant(int index) {
    const experiment::Variant& variant = experiment_.variant(index);
    const std::string path = absl::StrCat("variant[", index, "]");
    if (variant.has_name()) CheckName(path + ".name", variant.name());
    const auto check = [&](const experiment::Axis& axis) {
      if ((axis.field() == "mode" && variant.has_mode()) ||
          (axis.field() == "replay" && variant.has_replay()) ||
          (axis.field() == "delays" && variant.has_delays())) {
        Problem(absl::StrCat(path, ".", axis.field()),
                absl::StrCat("the axis over '", axis.field(),
                             "' sets it too; keep one of them"));
      }
    };
    for (const experiment::Axis& axis : experiment_.over()) check(axis);
    for (const experiment::Axis& axis : experiment_.tune().over()) check(axis);
  }

  void CheckTune() {
    const experiment::Tune& tune = experiment_.tune();
    if (tune.over_size() == 0) {
      Problem("tune.over",
              "there is none; at least one axis with the values to try is "
              "required");
    }
    for (int i = 0; i < tune.over_size(); ++i) {
      CheckAxis(absl::StrCat("tune.over[", i, "]"), tune.over(i));
    }
    CheckSeeds("tune.seed", tune.seed());
  }

  // After the axes that stand before it, those of `over` before the tune's.
  void CheckAxis(const std::string& path, const experiment::Axis& axis) {
    if (axis.field().empty()) {
      Problem(path + ".field",
              "is required: a field as for --set, or mode, replay, delays, "
              "workers or rate_factor");
    } else if (!axis_fields_.insert(axis.field()).second) {
      Problem(path + ".field", absl::StrCat("'", axis.field(),
                                            "' has an axis already; give all "
                                            "its values there"));
    }
    if (axis.value_size() == 0) {
      Problem(path + ".value", "is required: at least one value");
    }
    std::set<std::string> values;
    for (int i = 0; i < axis.value_size(); ++i) {
      if (values.insert(axis.value(i)).second) continue;
      Problem(absl::StrCat(path, ".value[", i, "]"),
              absl::StrCat("value is '", axis.value(i),
                           "' for the second time; values must differ"));
    }
  }

  void CheckTarget() {
    const experiment::Target& target = experiment_.target();
    if (target.has_test_accuracy() &&
        !(target.test_accuracy() > 0 && target.test_accuracy() <= 1)) {
      Problem("target.test_accuracy",
              absl::StrCat("value is ", target.test_accuracy(),
                           "; above 0 and at most 1 is required"));
    }
    if (target.has_test_loss() && !(target.test_loss() > 0)) {
      Problem("target.test_loss", absl::StrCat("value is ", target.test_loss(),
                                               "; above 0 is required"));
    }
  }

  const experiment::Experiment& experiment_;
  const FieldOrigins& origins_;
  std::set<std::string> axis_fields_;  // Of the axes so far.
  std::vector<std::string> problems_;
};

}  // namespace

bool IsExperimentName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameMax && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

absl::Status CheckExperiment(const experiment::Experiment& experiment,
                             const FieldOrigins& origins) {
  return Checker(experiment, origins).Check();
}

absl::StatusOr<ExperimentSource> LoadExperiment(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadTextFile("experiment file", path));
  ExperimentSource source{
      .experiment = {},
      .origins = FieldOrigins(path),
      .folder = std::filesystem::path(path).parent_path().string()};
  SL_RETURN_IF_ERROR(
      ParseConfigText(text, path, &source.experiment, &source.origins));
  SL_RETURN_IF_ERROR(CheckExperiment(source.experiment, source.origins));
  return source;
}

}  // namespace slackline
