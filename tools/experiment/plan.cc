#include "tools/experiment/plan.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/config/cluster_config.h"
#include "common/config/parse_text.h"
#include "common/io/sha256.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/experiment/replay_spec.h"
#include "tools/experiment/variant_names.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDefaultSeeds[] = {1, 2, 3};
// More is a mistake, and would keep the machine busy for months.
constexpr size_t kRunsMax = 10000;

// A variant before its config is made.
struct Draft {
  std::string name;
  std::string origin;  // Its place, for errors.
  std::string mode;
  std::string replay;
  std::string delays;
  std::vector<std::string> sets;
  std::vector<std::pair<std::string, std::string>> axes;
};

// "inf" stands for what SSP cannot say.
bool MeansAsp(absl::string_view field, absl::string_view value) {
  return value == "inf" &&
         (field == "sync.ssp.staleness" || field == "sync.dssp.max_staleness");
}

std::string DefaultName(const experiment::Variant& variant) {
  std::vector<std::string> parts;
  if (variant.has_mode()) parts.push_back(FileSafe(variant.mode()));
  for (const std::string& set : variant.set()) {
    parts.push_back(AssignmentName(set));
  }
  if (variant.has_replay()) {
    parts.push_back(ReplayName(variant.replay()));
  }
  if (variant.has_delays()) {
    parts.push_back(absl::StrCat("delays-", ReplayName(variant.delays())));
  }
  return absl::StrJoin(parts, "-");
}

class Expansion {
 public:
  explicit Expansion(const ExperimentSource& source)
      : source_(source), experiment_(source.experiment) {}

  absl::StatusOr<ExperimentPlan> Run() {
    FillDefaults();
    base_path_ = (fs::path(source_.folder) / experiment_.base()).string();
    const absl::StatusOr<std::string> base =
        ReadTextFile("cluster config", base_path_);
    if (!base.ok()) {
      return Annotate(base.status(),
                      absl::StrCat(source_.origins.Nearest("base"), ": base"));
    }
    plan_.base_text = *base;
    FindWorkerGroups();
    Draw();
    CheckNames();
    for (const Draft& draft : drafts_) Resolve(draft);
    if (absl::Status problems = Problems(); !problems.ok()) return problems;
    OrderRuns();
    std::error_code ignored;
    experiment_.set_base(
        fs::absolute(base_path_, ignored).lexically_normal().string());
    plan_.experiment = experiment_;
    return std::move(plan_);
  }

 private:
  void FillDefaults() {
    if (!experiment_.has_title()) experiment_.set_title(experiment_.name());
    if (experiment_.seed_size() == 0) {
      for (const int64_t seed : kDefaultSeeds) experiment_.add_seed(seed);
    }
    if (!experiment_.has_target()) {
      const config::Stop& stop = experiment_.stop();
      experiment::Target* const target = experiment_.mutable_target();
      if (stop.has_test_accuracy()) {
        target->set_test_accuracy(stop.test_accuracy());
      }
      if (stop.has_test_loss()) target->set_test_loss(stop.test_loss());
    }
    experiment_.set_parallel(experiment_.parallel());
  }

  // A base that does not parse is reported with the variants.
  void FindWorkerGroups() {
    config::ClusterConfig config;
    FieldOrigins unused(base_path_);
    if (ParseConfigText(plan_.base_text, base_path_, &config, &unused).ok()) {
      last_worker_group_ = std::max(0, config.worker_size() - 1);
    }
  }

  // Every variant times every combination; the last axis changes fastest.
  void Draw() {
    size_t combinations = 1;
    for (const experiment::Axis& axis : experiment_.over()) {
      combinations *= static_cast<size_t>(axis.value_size());
      const size_t runs = combinations *
                          std::max<size_t>(1, experiment_.variant_size()) *
                          static_cast<size_t>(experiment_.seed_size());
      if (runs <= kRunsMax) continue;
      problems_.push_back(absl::StrCat(source_.origins.Nearest("over"),
                                       ": over: more than ", kRunsMax,
                                       " runs; take out values or axes"));
      return;
    }
    if (experiment_.variant_size() == 0) {
      Draft draft;
      draft.origin = source_.origins.Nearest("over[0]");
      AddCombinations(std::move(draft), 0);
    }
    for (int i = 0; i < experiment_.variant_size(); ++i) {
      const experiment::Variant& variant = experiment_.variant(i);
      Draft draft;
      draft.origin = source_.origins.Nearest(absl::StrCat("variant[", i, "]"));
      draft.name = variant.has_name() ? variant.name() : DefaultName(variant);
      draft.mode = variant.mode();
      draft.replay = variant.replay();
      draft.delays = variant.delays();
      draft.sets.assign(variant.set().begin(), variant.set().end());
      // An axis of its own beside the others, for whoever shows the results.
      if (experiment_.variant_size() > 1 && experiment_.over_size() > 0) {
        draft.axes.push_back({"variant", draft.name});
      }
      AddCombinations(std::move(draft), 0);
    }
  }

  void AddCombinations(Draft draft, int axis_index) {
    if (axis_index == experiment_.over_size()) {
      if (draft.name.empty()) draft.name = "base";
      drafts_.push_back(std::move(draft));
      return;
    }
    const experiment::Axis& axis = experiment_.over(axis_index);
    const std::string& field = axis.field();
    const std::vector<std::string> values(axis.value().begin(),
                                          axis.value().end());
    const std::vector<std::string> names = AxisValueNames(field, values);
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string& value = values[i];
      Draft next = draft;
      next.axes.push_back({field, value});
      std::string name = names[i];
      if (field == "mode" || MeansAsp(field, value)) {
        const std::string mode = field == "mode" ? value : "asp";
        if (!next.mode.empty()) {
          problems_.push_back(absl::StrCat(
              draft.origin, ": ", field, "=", value, " means mode ", mode,
              ", but the mode is set to ", next.mode, "; keep one of them"));
        }
        next.mode = mode;
        name = FileSafe(mode);
      } else if (field == "replay") {
        next.replay = value;
        name = ReplayName(value);
      } else if (field == "delays") {
        next.delays = value;
        name = absl::StrCat("delays-", ReplayName(value));
      } else if (field == "workers") {
        next.sets.push_back(
            absl::StrCat("worker[", last_worker_group_, "].count=", value));
      } else {
        next.sets.push_back(absl::StrCat(field, "=", value));
      }
      absl::StrAppend(&next.name, next.name.empty() ? "" : "-", name);
      AddCombinations(std::move(next), axis_index + 1);
    }
  }

  void CheckNames() {
    std::set<std::string> names;
    for (const Draft& draft : drafts_) {
      if (!IsExperimentName(draft.name)) {
        problems_.push_back(absl::StrCat(
            draft.origin, ": variant '", draft.name,
            "': the name made of what it changes is no name of at most ",
            kNameMax, " characters; give the variant a name"));
      }
      if (names.insert(draft.name).second) continue;
      problems_.push_back(absl::StrCat(
          draft.origin, ": variant '", draft.name,
          "': another one has this name; give one of them another name"));
    }
    if (!experiment_.has_baseline() && !drafts_.empty()) {
      experiment_.set_baseline(drafts_[0].name);
    }
    if (names.count(experiment_.baseline()) > 0 || drafts_.empty()) return;
    problems_.push_back(absl::StrCat(
        source_.origins.Nearest("baseline"), ": baseline: value is '",
        experiment_.baseline(), "', which is no variant; one of ",
        absl::StrJoin(names, ", "), " is required"));
  }

  // Adds the variant and its runs, or its problems.
  void Resolve(const Draft& draft) {
    PlannedVariant variant{.name = draft.name,
                           .mode = "",
                           .sets = draft.sets,
                           .replay = "",
                           .axes = draft.axes,
                           .config = {}};
    std::set<std::string> problems;
    std::string fingerprint;
    // Of what `field` has.
    const auto resolve = [&](const char* field, const std::string& spec,
                             const std::string& folder) {
      absl::StatusOr<ReplaySpec> resolved = ParseReplaySpec(spec, folder);
      if (!resolved.ok()) {
        problems.insert(absl::StrCat(field, ": ", resolved.status().message()));
        return std::string();
      }
      absl::StrAppend(&fingerprint, resolved->fingerprint);
      return resolved->text;
    };
    if (!draft.replay.empty())
      variant.replay = resolve("replay", draft.replay, source_.folder);
    std::string delays;
    if (!draft.delays.empty()) {
      delays = resolve("delays", draft.delays, source_.folder);
      if (delays.empty()) delays = draft.delays;
    }
    const int index = static_cast<int>(plan_.variants.size());
    for (const int64_t seed : experiment_.seed()) {
      const absl::StatusOr<config::ClusterConfig> config = ParseJobConfig(
          plan_.base_text, base_path_, Overrides(draft, delays, seed));
      if (!config.ok()) {
        for (const absl::string_view line :
             absl::StrSplit(config.status().message(), '\n')) {
          problems.insert(std::string(line));
        }
        continue;
      }
      if (!draft.replay.empty()) {
        const absl::Status has_model = CheckHasModel(*config, "a replay");
        if (!has_model.ok()) problems.insert(std::string(has_model.message()));
      }
      PlannedRun run;
      run.variant = index;
      run.seed = seed;
      run.config = *config;
      run.config.mutable_coordinator()->clear_port();
      run.key = Sha256Hex(absl::StrCat(ToText(run.config), "\n",
                                       fingerprint.empty() ? variant.replay
                                                           : fingerprint))
                    .substr(0, 16);
      run.name =
          absl::StrCat(draft.name, "-seed", seed, "-", run.key.substr(0, 8));
      if (variant.mode.empty()) {
        variant.mode = ModeText(run.config);
        variant.config = run.config;
      }
      plan_.runs.push_back(std::move(run));
    }
    plan_.variants.push_back(std::move(variant));
    for (const std::string& problem : problems) {
      by_problem_[problem].push_back(&draft);
    }
  }

  // `delays`: those of the draft, with the whole path of a folder.
  ConfigOverrides Overrides(const Draft& draft, const std::string& delays,
                            int64_t seed) const {
    ConfigOverrides overrides;
    overrides.mode = draft.mode;
    overrides.delays = delays;
    overrides.sets.assign(experiment_.set().begin(), experiment_.set().end());
    overrides.sets.insert(overrides.sets.end(), draft.sets.begin(),
                          draft.sets.end());
    if (experiment_.has_stop()) {
      overrides.sets.push_back(absl::StrCat(
          "train.stop={", experiment_.stop().ShortDebugString(), "}"));
    }
    overrides.sets.push_back(absl::StrCat("train.seed=", seed));
    overrides.worker_command = source_.worker_command;
    return overrides;
  }

  absl::Status Problems() {
    for (const auto& [problem, drafts] : by_problem_) {
      if (drafts.size() == drafts_.size() && drafts.size() > 1) {
        problems_.push_back(absl::StrCat(source_.origins.Nearest("base"),
                                         ": in every variant: ", problem));
        continue;
      }
      for (const Draft* draft : drafts) {
        problems_.push_back(absl::StrCat(draft->origin, ": variant '",
                                         draft->name, "': ", problem));
      }
    }
    if (problems_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

  void OrderRuns() {
    // Runs of one seed are in the order of the variants already.
    std::map<int64_t, int> place;
    for (const int64_t seed : experiment_.seed()) {
      place.insert({seed, static_cast<int>(place.size())});
    }
    std::stable_sort(plan_.runs.begin(), plan_.runs.end(),
                     [&](const PlannedRun& a, const PlannedRun& b) {
                       return place[a.seed] < place[b.seed];
                     });
    // What the experiment says, free of where it was.
    for (experiment::Variant& variant : *experiment_.mutable_variant()) {
      if (variant.has_replay()) {
        variant.set_replay(
            ParseReplaySpec(variant.replay(), source_.folder)->text);
      }
      if (variant.has_delays()) {
        variant.set_delays(
            ParseReplaySpec(variant.delays(), source_.folder)->text);
      }
    }
    for (experiment::Axis& axis : *experiment_.mutable_over()) {
      if (axis.field() != "replay" && axis.field() != "delays") continue;
      for (std::string& value : *axis.mutable_value()) {
        value = ParseReplaySpec(value, source_.folder)->text;
      }
    }
  }

  const ExperimentSource& source_;
  experiment::Experiment experiment_;
  std::string base_path_;
  int last_worker_group_ = 0;
  std::vector<Draft> drafts_;
  ExperimentPlan plan_;
  std::vector<std::string> problems_;
  std::map<std::string, std::vector<const Draft*>> by_problem_;
};

}  // namespace

absl::StatusOr<ExperimentPlan> ExpandExperiment(
    const ExperimentSource& source) {
  return Expansion(source).Run();
}

}  // namespace slackline
