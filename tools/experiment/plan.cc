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
#include "google/protobuf/util/message_differencer.h"
#include "job/job_config.h"
#include "tools/experiment/rate_factor.h"
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
  std::optional<std::string> rate_factor;
  std::vector<std::string> sets;
  std::vector<std::string> tuned_sets;  // Of the values of the tune's axes.
  AxisValues axes;
  AxisValues tuned;
  int experiment_variant = 0;
  bool has_runs = true;
};

// "inf" stands for what SSP cannot say.
bool MeansAsp(absl::string_view field, absl::string_view value) {
  return value == "inf" &&
         (field == "sync.ssp.staleness" || field == "sync.dssp.max_staleness");
}

// Of a value of an axis whose AxisValueNames() has `name` for it.
std::string NameOf(const std::string& field, const std::string& value,
                   const std::string& name) {
  if (MeansAsp(field, value)) return "asp";
  if (field == "replay") return ReplayName(value);
  if (field == "delays") return absl::StrCat("delays-", ReplayName(value));
  return name;
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
  // The runs of an experiment.
  Expansion(const ExperimentSource& source,
            const std::vector<std::optional<AxisValues>>& tuned)
      : source_(source), experiment_(source.experiment), tuned_(tuned) {}
  // Its tries.
  explicit Expansion(const ExperimentSource& source)
      : source_(source), experiment_(source.experiment), tries_(true) {}

  absl::StatusOr<ExperimentPlan> Run() {
    axes_end_ = experiment_.over_size();
    FillDefaults();
    CheckTuneSeeds();
    if (tries_) TakeTuneAsExperiment();
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
    if (experiment_.has_tune() && experiment_.tune().seed_size() == 0) {
      experiment_.mutable_tune()->add_seed(kFirstTuneSeed);
    }
  }

  // Values that are chosen by the luck of a seed would do well on it again.
  void CheckTuneSeeds() {
    for (int i = 0; i < experiment_.tune().seed_size(); ++i) {
      const int64_t seed = experiment_.tune().seed(i);
      if (std::count(experiment_.seed().begin(), experiment_.seed().end(),
                     seed) == 0) {
        continue;
      }
      const std::string path = absl::StrCat("tune.seed[", i, "]");
      problems_.push_back(absl::StrCat(
          source_.origins.Nearest(path), ": ", path, ": value is ", seed,
          ", which is a seed of the runs, too; tune with other seeds, or run "
          "with others"));
    }
  }

  void TakeTuneAsExperiment() {
    first_run_seed_ = experiment_.seed(0);
    *experiment_.mutable_seed() = experiment_.tune().seed();
    axes_end_ += experiment_.tune().over_size();
    // Its name is none of those of the tries.
    experiment_.clear_baseline();
  }

  const experiment::Axis& AxisAt(int index) const {
    return index < experiment_.over_size()
               ? experiment_.over(index)
               : experiment_.tune().over(index - experiment_.over_size());
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
    for (int i = 0; i < axes_end_; ++i) {
      combinations *= static_cast<size_t>(AxisAt(i).value_size());
      const size_t runs = combinations *
                          std::max<size_t>(1, experiment_.variant_size()) *
                          static_cast<size_t>(experiment_.seed_size());
      if (runs <= kRunsMax) continue;
      const char* const field = i < experiment_.over_size() ? "over" : "tune";
      problems_.push_back(absl::StrCat(source_.origins.Nearest(field), ": ",
                                       field, ": more than ", kRunsMax,
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
      draft.experiment_variant = experiment_variants_++;
      if (experiment_.has_tune() && !tries_) TakeTuned(&draft);
    }
    if (axis_index == axes_end_) {
      drafts_.push_back(std::move(draft));
      return;
    }
    const experiment::Axis& axis = AxisAt(axis_index);
    const bool of_tune = axis_index >= experiment_.over_size();
    const std::vector<std::string> values(axis.value().begin(),
                                          axis.value().end());
    const std::vector<std::string> names = AxisValueNames(axis.field(), values);
    for (size_t i = 0; i < values.size(); ++i) {
      Draft next = draft;
      (of_tune ? next.tuned : next.axes).push_back({axis.field(), values[i]});
      Assign(axis.field(), values[i], &next,
             of_tune ? &next.tuned_sets : &next.sets);
      absl::StrAppend(&next.name, next.name.empty() ? "" : "-",
                      NameOf(axis.field(), values[i], names[i]));
      AddCombinations(std::move(next), axis_index + 1);
    }
  }

  // The values that its tries have given, or no runs.
  void TakeTuned(Draft* draft) {
    const size_t index = static_cast<size_t>(draft->experiment_variant);
    draft->has_runs = index < tuned_.size() && tuned_[index].has_value();
    if (!draft->has_runs) return;
    draft->tuned = *tuned_[index];
    for (const auto& [field, value] : draft->tuned)
      Assign(field, value, draft, &draft->tuned_sets);
  }

  // One value of an axis. `sets`: those of the draft for it.
  void Assign(const std::string& field, const std::string& value, Draft* draft,
              std::vector<std::string>* sets) {
    if (field == "mode" || MeansAsp(field, value)) {
      const std::string mode = field == "mode" ? value : "asp";
      if (!draft->mode.empty()) {
        problems_.push_back(absl::StrCat(
            draft->origin, ": ", field, "=", value, " means mode ", mode,
            ", but the mode is set to ", draft->mode, "; keep one of them"));
      }
      draft->mode = mode;
    } else if (field == "replay") {
      draft->replay = value;
    } else if (field == "delays") {
      draft->delays = value;
    } else if (field == kRateFactor) {
      draft->rate_factor = value;
    } else if (field == "workers") {
      sets->push_back(
          absl::StrCat("worker[", last_worker_group_, "].count=", value));
    } else {
      sets->push_back(absl::StrCat(field, "=", value));
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
                           .tuned = draft.tuned,
                           .experiment_variant = draft.experiment_variant,
                           .config = {}};
    std::set<std::string> problems;
    const auto note = [&](const absl::Status& status) {
      if (status.ok()) return;
      for (const absl::string_view line :
           absl::StrSplit(status.message(), '\n')) {
        problems.insert(std::string(line));
      }
    };
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
      const absl::StatusOr<config::ClusterConfig> config =
          ConfigOf(draft, delays, seed, tries_);
      note(config.status());
      if (!config.ok()) continue;
      if (!draft.replay.empty()) note(CheckHasModel(*config, "a replay"));
      PlannedRun run;
      run.variant = index;
      run.seed = seed;
      run.config = *config;
      run.config.mutable_coordinator()->clear_port();
      note(TakeTrack(&run.config));
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
      if (draft.has_runs) plan_.runs.push_back(std::move(run));
    }
    // The runs that may follow from a try, before hours of tries.
    if (tries_) note(ConfigOf(draft, delays, first_run_seed_, false).status());
    plan_.variants.push_back(std::move(variant));
    for (const std::string& problem : problems) {
      by_problem_[problem].push_back(&draft);
    }
  }

  // Who follows the experiment follows all of its runs.
  absl::Status TakeTrack(config::ClusterConfig* config) {
    if (!track_taken_) plan_.track = config->track();
    const bool same = google::protobuf::util::MessageDifferencer::Equals(
        plan_.track, config->track());
    track_taken_ = true;
    config->clear_track();
    if (same) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "track: it is another one than that of the first variant, and an "
        "experiment has one for all; set it in the base config");
  }

  // `delays`: those of the draft, with the whole path of a folder. Of a run
  // that tries, or of one that does not.
  absl::StatusOr<config::ClusterConfig> ConfigOf(const Draft& draft,
                                                 const std::string& delays,
                                                 int64_t seed,
                                                 bool tries) const {
    ConfigOverrides overrides;
    overrides.mode = draft.mode;
    overrides.delays = delays;
    overrides.sets.assign(experiment_.set().begin(), experiment_.set().end());
    overrides.sets.insert(overrides.sets.end(), draft.sets.begin(),
                          draft.sets.end());
    overrides.sets.insert(overrides.sets.end(), draft.tuned_sets.begin(),
                          draft.tuned_sets.end());
    if (experiment_.has_stop() && !tries) {
      overrides.sets.push_back(absl::StrCat(
          "train.stop={", experiment_.stop().ShortDebugString(), "}"));
    }
    const std::string with_seed = absl::StrCat("train.seed=", seed);
    overrides.sets.push_back(with_seed);
    overrides.worker_command = source_.worker_command;
    SL_ASSIGN_OR_RETURN(config::ClusterConfig config,
                        ParseJobConfig(plan_.base_text, base_path_, overrides));
    // Flags of one call must not contradict each other; these go over the
    // others.
    const auto set_over = [&](const std::vector<std::string>& sets) {
      absl::StatusOr<config::ClusterConfig> changed = ParseJobConfig(
          ToText(config), absl::StrCat("the config of ", draft.name),
          {.mode = "", .sets = sets});
      if (!changed.ok()) return changed.status();
      config = *std::move(changed);
      return absl::OkStatus();
    };
    const experiment::Tune& tune = experiment_.tune();
    if (tries) {
      // All would end just where the rule comes true: no measure of the values.
      config.mutable_train()->clear_stop();
    }
    if (tries && tune.set_size() > 0) {
      std::vector<std::string> sets(tune.set().begin(), tune.set().end());
      sets.push_back(with_seed);
      SL_RETURN_IF_ERROR(set_over(sets));
    }
    if (draft.rate_factor.has_value()) {
      SL_ASSIGN_OR_RETURN(const std::string assignment,
                          RateAssignment(*draft.rate_factor, config));
      SL_RETURN_IF_ERROR(set_over({assignment}));
    }
    return config;
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
    for (experiment::Axis& axis : *experiment_.mutable_over()) MakeFree(&axis);
    if (!experiment_.has_tune()) return;
    for (experiment::Axis& axis : *experiment_.mutable_tune()->mutable_over()) {
      MakeFree(&axis);
    }
  }
  void MakeFree(experiment::Axis* axis) const {
    if (axis->field() != "replay" && axis->field() != "delays") return;
    for (std::string& value : *axis->mutable_value()) {
      value = ParseReplaySpec(value, source_.folder)->text;
    }
  }

  const ExperimentSource& source_;
  experiment::Experiment experiment_;
  // Of an expansion into runs.
  std::vector<std::optional<AxisValues>> tuned_ = {};
  const bool tries_ = false;
  int64_t first_run_seed_ = 0;   // Of an expansion into tries.
  int axes_end_ = 0;             // Those of `over` and, for tries, of the tune.
  int experiment_variants_ = 0;  // Of the drafts so far.
  std::string base_path_;
  int last_worker_group_ = 0;
  std::vector<Draft> drafts_;
  ExperimentPlan plan_;
  bool track_taken_ = false;
  std::vector<std::string> problems_;
  std::map<std::string, std::vector<const Draft*>> by_problem_;
};

}  // namespace

absl::StatusOr<ExperimentPlan> ExpandExperiment(
    const ExperimentSource& source,
    const std::vector<std::optional<AxisValues>>& tuned) {
  return Expansion(source, tuned).Run();
}

absl::StatusOr<ExperimentPlan> ExpandTries(const ExperimentSource& source) {
  return Expansion(source).Run();
}

}  // namespace slackline
