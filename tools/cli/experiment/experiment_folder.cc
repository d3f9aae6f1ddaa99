#include "tools/cli/experiment/experiment_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/io/atomic_file.h"
#include "common/status.h"
#include "common/version.h"
#include "google/protobuf/text_format.h"
#include "tools/cli/experiment/machine.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A null value if the file is missing or no JSON.
nlohmann::json ReadJsonFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return nullptr;
  nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  return json.is_object() ? json : nlohmann::json();
}

std::string TextOf(const nlohmann::json& json, const char* name) {
  const auto it = json.find(name);
  return it != json.end() && it->is_string() ? it->get<std::string>() : "";
}

absl::Status WriteJson(const std::string& path, const Json& json) {
  // Logs may hold any bytes.
  const std::string text =
      json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  return WriteFileAtomically(path, {text});
}

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("folder ", path, " cannot be made: ", error.message(),
                   "; choose another with --out"));
}

Json ValuesJson(const AxisValues& values) {
  Json json = Json::object();
  for (const auto& [field, value] : values) json[field] = value;
  return json;
}

Json TriedJson(const TriedValues& tried, const ExperimentPlan& tries) {
  Json runs = Json::array();
  for (const int run : tried.runs) runs.push_back(tries.runs[run].name);
  return {{"values", ValuesJson(tried.values)},
          {"result", tried.result.has_value() ? Json(*tried.result) : Json()},
          {"diverged", tried.diverged},
          {"runs", runs}};
}

Json TuneJson(const ExperimentPlan& plan, const ExperimentPlan& tries,
              const Tuning& tuning) {
  Json fields = Json::array();
  for (const experiment::Axis& axis : plan.experiment.tune().over())
    fields.push_back(axis.field());
  Json variants = Json::array();
  for (size_t i = 0; i < tuning.variants.size(); ++i) {
    const TunedVariant& variant = tuning.variants[i];
    Json tried = Json::array();
    for (const TriedValues& values : variant.tried)
      tried.push_back(TriedJson(values, tries));
    Json json = {
        {"variant", plan.variants[i].name},
        {"tried", tried},
        {"chosen", ValuesJson(tuning.Chosen()[i].value_or(AxisValues()))},
        {"at_edge", variant.at_edge}};
    if (!variant.left_out.empty()) json["left_out"] = variant.left_out;
    variants.push_back(std::move(json));
  }
  return {{"fields", fields},
          {"seeds", std::vector<int64_t>(tries.experiment.seed().begin(),
                                         tries.experiment.seed().end())},
          {"measure", tuning.by_accuracy ? "test_accuracy" : "test_loss"},
          {"variants", variants}};
}

Json TargetJson(const experiment::Target& target) {
  Json json = Json::object();
  if (target.has_test_accuracy()) {
    json["test_accuracy"] = target.test_accuracy();
  }
  if (target.has_test_loss()) json["test_loss"] = target.test_loss();
  return json;
}

}  // namespace

absl::Status ExperimentFolder::CheckIsOf(const std::string& experiment) const {
  std::error_code error;
  if (!fs::exists(path_, error)) return absl::OkStatus();
  if (!fs::is_directory(path_, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out: ", path_, " is no folder; choose another"));
  }
  const nlohmann::json json = ReadJsonFile(path_ + "/experiment.json");
  if (TextOf(json, "name") == experiment) return absl::OkStatus();
  if (!json.is_null()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--out: ", path_, " holds the experiment '", TextOf(json, "name"),
        "', not '", experiment, "'; choose another folder"));
  }
  for (const fs::directory_entry& entry :
       fs::directory_iterator(path_, error)) {
    if (entry.path().filename() == "experiment.lock") continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--out: ", path_,
                     " is not empty and holds no experiment; choose another "
                     "folder"));
  }
  return absl::OkStatus();
}

absl::Status ExperimentFolder::Lock() {
  SL_RETURN_IF_ERROR(MakeFolder(path_));
  const std::string file = path_ + "/experiment.lock";
  lock_ = Descriptor(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (lock_.valid() && flock(lock_.get(), LOCK_EX | LOCK_NB) == 0)
    return absl::OkStatus();
  if (lock_.valid() && errno == EWOULDBLOCK) {
    return absl::UnavailableError(absl::StrCat(
        "another slackline is at work in ", path_,
        "; wait until it is done, or choose another folder with --out"));
  }
  return absl::UnavailableError(
      absl::StrCat(file, " cannot be locked: ", std::strerror(errno)));
}

std::string ExperimentFolder::RunPath(const PlannedRun& run) const {
  return absl::StrCat(path_, "/runs/", run.name);
}

std::string ExperimentFolder::LogPath(const PlannedRun& run) const {
  return absl::StrCat(path_, "/logs/", run.name, ".log");
}

std::string ExperimentFolder::ConfigPath(const PlannedRun& run) const {
  return absl::StrCat(path_, "/configs/", run.name, ".textproto");
}

std::vector<RunRecord> ExperimentFolder::ReadRecords(
    const ExperimentPlan& plan) const {
  std::vector<RunRecord> records;
  for (const PlannedRun& run : plan.runs) {
    RunRecord record;
    std::error_code error;
    if (!fs::exists(RunPath(run), error)) {
      records.push_back(record);
      continue;
    }
    record.state = RunRecord::State::kCutOff;
    const nlohmann::json json = ReadJsonFile(RunPath(run) + "/run.json");
    if (!json.is_null() && TextOf(json, "key") == run.key) {
      const std::string state = TextOf(json, "state");
      if (state == StateText(RunRecord::State::kFinished)) {
        record.state = RunRecord::State::kFinished;
      } else if (state == StateText(RunRecord::State::kFailed)) {
        record.state = RunRecord::State::kFailed;
      }
      record.error = TextOf(json, "error");
      record.command = TextOf(json, "command");
      record.commit = TextOf(json, "commit");
      record.started = TextOf(json, "started");
      const auto elapsed = json.find("elapsed_seconds");
      if (elapsed != json.end() && elapsed->is_number()) {
        record.elapsed_seconds = elapsed->get<double>();
      }
    }
    records.push_back(std::move(record));
  }
  return records;
}

std::vector<std::string> ExperimentFolder::OtherRuns(
    absl::Span<const ExperimentPlan* const> plans) const {
  std::set<std::string> others;
  std::error_code error;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(path_ + "/runs", error)) {
    others.insert(entry.path().filename().string());
  }
  for (const ExperimentPlan* const plan : plans) {
    for (const PlannedRun& run : plan->runs) others.erase(run.name);
  }
  return {others.begin(), others.end()};
}

absl::StatusOr<RunOutcome> ExperimentFolder::ReadOutcome(
    const PlannedRun& run) const {
  const std::string path = RunPath(run) + "/summary.json";
  const nlohmann::json json = ReadJsonFile(path);
  if (json.is_null()) {
    return absl::NotFoundError(
        absl::StrCat(path, " is not there, or no JSON object"));
  }
  if (TextOf(json, "cause") == "DIVERGED")
    return absl::OutOfRangeError(TextOf(json, "reason"));
  if (TextOf(json, "state") != "FINISHED") {
    return absl::FailedPreconditionError(
        absl::StrCat("the job has failed: ", TextOf(json, "reason")));
  }
  if (TextOf(json, "cause") == "FINISHED_EARLY") {
    return absl::FailedPreconditionError(absl::StrCat(
        "the job was ", TextOf(json, "reason"), "; that is no whole run"));
  }
  // JSON has no NaN and no infinity; they are written as null. What the
  // workers' program does not measure is left out.
  const auto number = [&](const char* name) {
    const auto it = json.find(name);
    return it != json.end() && it->is_number() ? it->get<double>()
                                               : std::nan("");
  };
  for (const char* const loss : {"train_loss", "test_loss"}) {
    if (!json.contains(loss) || std::isfinite(number(loss))) continue;
    return absl::OutOfRangeError(absl::StrCat(
        "diverged: ", loss, " is no finite number; lower the learning rate"));
  }
  return RunOutcome{.test_accuracy = number("test_accuracy"),
                    .test_loss = number("test_loss")};
}

std::vector<TryOutcome> ExperimentFolder::ReadTries(
    const ExperimentPlan& tries) const {
  using State = TryOutcome::State;
  std::vector<TryOutcome> outcomes;
  const std::vector<RunRecord> records = ReadRecords(tries);
  for (size_t i = 0; i < records.size(); ++i) {
    outcomes.emplace_back();
    const bool ended = records[i].state == RunRecord::State::kFinished ||
                       records[i].state == RunRecord::State::kFailed;
    if (!ended) continue;
    const absl::StatusOr<RunOutcome> read = ReadOutcome(tries.runs[i]);
    if (read.ok() && records[i].state == RunRecord::State::kFinished) {
      outcomes.back() = {.state = State::kFinished,
                         .test_accuracy = read->test_accuracy,
                         .test_loss = read->test_loss};
    } else {
      outcomes.back().state =
          absl::IsOutOfRange(read.status()) ? State::kDiverged : State::kFailed;
    }
  }
  return outcomes;
}

absl::Status ExperimentFolder::WriteInputs(const ExperimentPlan& plan) const {
  for (const char* const folder : {"runs", "logs", "configs"}) {
    SL_RETURN_IF_ERROR(MakeFolder(absl::StrCat(path_, "/", folder)));
  }
  experiment::Experiment experiment = plan.experiment;
  experiment.set_base("base.textproto");
  std::string text;
  SL_CHECK(google::protobuf::TextFormat::PrintToString(experiment, &text),
           "an experiment in memory prints");
  SL_RETURN_IF_ERROR(
      WriteFileAtomically(path_ + "/base.textproto", {plan.base_text}));
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      path_ + "/experiment.textproto",
      {absl::StrCat("# Written by slackline, with its defaults; the base was ",
                    plan.experiment.base(), ".\n"),
       text}));
  return absl::OkStatus();
}

absl::Status ExperimentFolder::WriteConfigs(const ExperimentPlan& plan) const {
  for (const PlannedRun& run : plan.runs) {
    SL_RETURN_IF_ERROR(
        WriteFileAtomically(ConfigPath(run), {ToText(run.config)}));
  }
  return absl::OkStatus();
}

absl::Status ExperimentFolder::WriteState(const ExperimentPlan& plan,
                                          const std::vector<RunRecord>& records,
                                          const std::string& command,
                                          const ExperimentPlan* tries,
                                          const Tuning* tuning) const {
  const experiment::Experiment& experiment = plan.experiment;
  const Machine machine = ThisMachine();
  Json json = {
      {"name", experiment.name()},
      {"title", experiment.title()},
      {"question", std::vector<std::string>(experiment.question().begin(),
                                            experiment.question().end())},
      {"baseline", experiment.baseline()},
      {"target", TargetJson(experiment.target())},
      {"command", command},
      {"commit", BuildCommit()},
      {"machine",
       {{"cpus", machine.cpus},
        {"model", machine.cpu_model},
        // Tenths: what people call it.
        {"memory_gib", std::round(machine.memory_gib * 10) / 10}}},
      {"seeds", std::vector<int64_t>(experiment.seed().begin(),
                                     experiment.seed().end())},
      {"parallel", experiment.parallel()},
      {"variants", Json::array()},
      {"runs", Json::array()}};
  for (const PlannedVariant& variant : plan.variants) {
    json["variants"].push_back({{"name", variant.name},
                                {"mode", variant.mode},
                                {"set", variant.sets},
                                {"replay", variant.replay},
                                {"axes", ValuesJson(variant.axes)},
                                {"config", ToText(variant.config)}});
  }
  for (size_t i = 0; i < plan.runs.size(); ++i) {
    json["runs"].push_back(
        {{"variant", plan.variants[plan.runs[i].variant].name},
         {"seed", plan.runs[i].seed},
         {"folder", absl::StrCat("runs/", plan.runs[i].name)},
         {"state", StateText(records[i].state)}});
  }
  if (tries != nullptr) {
    json["tune"] = TuneJson(plan, *tries, *tuning);
    // Of runs without values: tries are missing, or none was good.
    for (size_t i = 0; i < plan.variants.size(); ++i) {
      if (!plan.variants[i].tuned.empty()) continue;
      for (const int64_t seed : experiment.seed()) {
        json["runs"].push_back(
            {{"variant", plan.variants[i].name},
             {"seed", seed},
             {"folder", ""},
             {"state", tuning->variants[i].left_out.empty()
                           ? StateText(RunRecord::State::kToDo)
                           : "not tuned"}});
      }
    }
  }
  return WriteJson(path_ + "/experiment.json", json);
}

absl::Status ExperimentFolder::WriteRecord(const ExperimentPlan& plan,
                                           const PlannedRun& run,
                                           const RunRecord& record) const {
  // A run that failed at its start has left nothing.
  SL_RETURN_IF_ERROR(MakeFolder(RunPath(run)));
  return WriteJson(RunPath(run) + "/run.json",
                   {{"variant", plan.variants[run.variant].name},
                    {"seed", run.seed},
                    {"key", run.key},
                    {"state", StateText(record.state)},
                    {"error", record.error},
                    {"command", record.command},
                    {"commit", record.commit},
                    {"started", record.started},
                    {"elapsed_seconds", record.elapsed_seconds}});
}

absl::Status ExperimentFolder::RemoveRun(const PlannedRun& run) const {
  std::error_code error;
  fs::remove_all(RunPath(run), error);
  if (!error) fs::remove(LogPath(run), error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("what is left of ", RunPath(run),
                   " cannot be removed: ", error.message()));
}

std::string StateText(RunRecord::State state) {
  switch (state) {
    case RunRecord::State::kFinished:
      return "finished";
    case RunRecord::State::kFailed:
      return "failed";
    default:
      return "to do";
  }
}

}  // namespace slackline
