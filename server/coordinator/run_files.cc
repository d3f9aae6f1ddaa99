#include "server/coordinator/run_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/metrics/metric_table.h"
#include "common/metrics/step_phases.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "server/coordinator/failure_page.h"

namespace slackline {
namespace {

nlohmann::ordered_json PercentilesJson(const run::Percentiles& percentiles) {
  return {{"p50", percentiles.p50()},
          {"p99", percentiles.p99()},
          {"max", percentiles.max()}};
}

nlohmann::ordered_json TracebacksJson(const run::Summary& summary) {
  nlohmann::ordered_json tracebacks = nlohmann::ordered_json::array();
  for (const run::Traceback& traceback : summary.traceback()) {
    tracebacks.push_back(
        {{"rank", traceback.rank()}, {"text", traceback.text()}});
  }
  return tracebacks;
}

nlohmann::ordered_json StoodStillJson(const run::Summary& summary) {
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const run::StoodStill& worker : summary.stood_still()) {
    all.push_back({{"rank", worker.rank()},
                   {"seconds", worker.seconds()},
                   {"where", worker.where()},
                   {"text", worker.text()}});
  }
  return all;
}

nlohmann::ordered_json PhasesJson(const google::protobuf::Message& phases) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [phase, seconds] : PhasesOf(phases)) json[phase] = seconds;
  return json;
}

nlohmann::ordered_json FigureJson(
    const google::protobuf::Message& message,
    const google::protobuf::FieldDescriptor& field) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& read = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return read.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return read.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return read.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return PhasesJson(read.GetMessage(message, &field));
    default:
      SL_CHECK(false, "a figure of a summary is a number, or phases");
      return nullptr;
  }
}

// What the table of metrics says that the message has, as `where` has it.
void PutFigures(const google::protobuf::Message& message,
                absl::Span<const Metric> metrics, int Metric::*where,
                nlohmann::ordered_json* json) {
  for (const Metric& metric : metrics) {
    if (metric.*where == 0) continue;
    const google::protobuf::FieldDescriptor& field =
        *message.GetDescriptor()->FindFieldByNumber(metric.*where);
    (*json)[std::string(field.name())] = FigureJson(message, field);
  }
}

nlohmann::ordered_json WorkersJson(const run::Summary& summary) {
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const run::WorkerSummary& worker : summary.worker()) {
    nlohmann::ordered_json json = {{"rank", worker.rank()}};
    PutFigures(worker, WorkerMetrics(), &Metric::of_worker, &json);
    json["nonfinite"] = worker.nonfinite();
    json["oversized"] = worker.oversized();
    workers.push_back(std::move(json));
  }
  return workers;
}

nlohmann::ordered_json ProgramsJson(const run::Summary& summary) {
  nlohmann::ordered_json programs = nlohmann::ordered_json::array();
  for (const run::Program& program : summary.program()) {
    programs.push_back({{"program", program.program()},
                        {"version", program.version()},
                        {"commit", program.commit()},
                        {"build_id", program.build_id()},
                        {"servers", program.servers()},
                        {"workers", program.workers()}});
  }
  return programs;
}

// How many bytes of the file its whole lines have.
int64_t WholeLines(int file) {
  std::array<char, 4096> block;
  const int64_t size = std::max<int64_t>(lseek(file, 0, SEEK_END), 0);
  int64_t end = size;
  while (end > 0) {
    const int64_t begin =
        std::max<int64_t>(0, end - static_cast<int64_t>(block.size()));
    const ssize_t got =
        pread(file, block.data(), static_cast<size_t>(end - begin), begin);
    if (got < 0) return size;  // Nothing is cut off that cannot be read.
    for (ssize_t i = got; i > 0; --i) {
      if (block[static_cast<size_t>(i) - 1] == '\n') return begin + i;
    }
    end = begin;
  }
  return 0;
}

nlohmann::ordered_json CheckpointJson(const run::CheckpointRecord& record) {
  return {{"folder", record.folder()},
          {"clock", record.clock()},
          {"bytes", record.bytes()},
          {"seconds", record.seconds()},
          {"took_seconds", record.took_seconds()}};
}

nlohmann::ordered_json BestCheckpointJson(const run::BestCheckpoint& best) {
  return {{"folder", best.folder()},
          {"clock", best.clock()},
          {"evaluated_at", best.evaluated_at()},
          {"measure", best.measure()},
          {"value", best.value()}};
}

// What its fields and this program's own texts hold may come from anywhere, a
// path for example: what is no UTF-8 is replaced, since JSON cannot have it.
std::string TextOf(const nlohmann::ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

std::string ErrorText(int error_number) {
  return std::generic_category().message(error_number);
}

std::string RunsPath(const std::string& folder) {
  return absl::StrCat(folder, "/runs.txt");
}

std::string SummaryPath(const std::string& folder) {
  return absl::StrCat(folder, "/summary.json");
}

constexpr const char* kRecordFiles[] = {"metrics.jsonl", "moves.jsonl",
                                        "modes.jsonl"};
constexpr int64_t kSummaryBytesMax = 64 << 20;

// Of the line with Origin::folder; the last one counts.
constexpr absl::string_view kFolderLine = "folder ";

std::string RunName(uint64_t run) { return absl::StrFormat("%016x", run); }

// Whether a record is of a later step. What somebody else has written there is
// not.
bool IsAfter(const nlohmann::json& record, const LastSteps& last) {
  if (!record.is_object()) return false;
  const auto number = [&](const char* field) -> std::optional<int64_t> {
    const auto found = record.find(field);
    if (found == record.end() || !found->is_number_integer())
      return std::nullopt;
    return found->get<int64_t>();
  };
  if (const auto from = number("from_clock"); from.has_value())
    return *from > last.all;
  const auto own =
      record.contains("kind") && record["kind"] == "train"
          ? last.own.find(static_cast<int32_t>(number("rank").value_or(-1)))
          : last.own.end();
  return number("step").value_or(0) >
         (own == last.own.end() ? last.all : own->second);
}

// To be said for the first record that a file lacks.
absl::Status FirstLoss(const LineFile& file, const absl::Status& appended) {
  if (appended.ok() || file.lost() > 1) return absl::OkStatus();
  return Annotate(appended, absl::StrCat("a record is lost; the run goes on, "
                                         "and its summary says how many"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Create(
    const std::string& path, bool keep) {
  Descriptor file(open(
      path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | (keep ? 0 : O_TRUNC), 0644));
  if (!file.valid()) {
    return absl::PermissionDeniedError(absl::StrCat("cannot write ", path, ": ",
                                                    ErrorText(errno),
                                                    "; choose another --out"));
  }
  const int64_t bytes = keep ? WholeLines(file.get()) : 0;
  // Who wrote it may have died in the middle of a line.
  if (keep) (void)ftruncate(file.get(), static_cast<off_t>(bytes));
  return std::unique_ptr<LineFile>(new LineFile(path, std::move(file), bytes));
}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::GoOn(
    const std::string& path, const coordinator::FilesState::File& kept) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<LineFile> file,
                      Create(path, /*keep=*/true));
  file->lost_ = kept.lost();
  if (kept.lost() > 0) file->why_ = absl::UnknownError(kept.why_lost());
  if (file->bytes_ >= kept.bytes()) {
    (void)ftruncate(file->file_.get(), static_cast<off_t>(kept.bytes()));
    file->bytes_ = kept.bytes();
    return file;
  }
  // Unlike the state, records are not synced.
  if (file->lost_++ == 0) {
    file->why_ = absl::DataLossError(
        absl::StrCat("its whole lines had ", file->bytes_,
                     " bytes when the coordinator was started again, and ",
                     kept.bytes(), " before"));
  }
  return file;
}

void LineFile::LackOthers(const coordinator::FilesState::File& kept) {
  lost_ = kept.lost();
  if (lost_ > 0) why_ = absl::UnknownError(kept.why_lost());
  if (kept.bytes() == 0) return;
  ++lost_;
  why_ = absl::NotFoundError(absl::StrCat(
      "the coordinator before had written ", kept.bytes(),
      " bytes into another folder, whose records come before these"));
}

absl::Status LineFile::Append(const std::string& line) {
  const std::string text = absl::StrCat(line, "\n");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t written =
        pwrite(file_.get(), text.data() + done, text.size() - done,
               static_cast<off_t>(bytes_ + static_cast<int64_t>(done)));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const absl::Status failed = absl::ResourceExhaustedError(absl::StrCat(
          "write ", path_, ": ", ErrorText(written < 0 ? errno : ENOSPC)));
      // Part of a line would spoil the file for its readers.
      (void)ftruncate(file_.get(), static_cast<off_t>(bytes_));
      if (lost_++ == 0) why_ = failed;
      return failed;
    }
    done += static_cast<size_t>(written);
  }
  bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

namespace {

// What runs.txt says.
struct RunsOfFolder {
  std::vector<uint64_t> runs;
  uint64_t folder = 0;
};
absl::StatusOr<RunsOfFolder> ReadRuns(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadRegularFile(RunsPath(folder), kRunsFileBytesMax);
  if (absl::IsNotFound(text.status())) return RunsOfFolder();
  if (!text.ok()) {
    return Annotate(text.status(),
                    "the file with a line for each run of the folder (without "
                    "it, the records begin anew)");
  }
  RunsOfFolder read;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const bool is_folder = absl::ConsumePrefix(&line, kFolderLine);
    uint64_t number = 0;
    if (!absl::SimpleHexAtoi(line, &number) || line != RunName(number))
      continue;
    if (is_folder) {
      read.folder = number;
    } else {
      read.runs.push_back(number);
    }
  }
  return read;
}

nlohmann::ordered_json RefusedJson(const run::Refusals& refused) {
  return {{"no_key", refused.no_key()},
          {"other_key", refused.other_key()},
          {"foreign", refused.foreign()},
          {"other_user", refused.other_user()},
          {"not_allowed", refused.not_allowed()},
          {"silent", refused.silent()}};
}

}  // namespace

absl::StatusOr<std::vector<uint64_t>> RunsIn(const std::string& folder) {
  SL_ASSIGN_OR_RETURN(RunsOfFolder read, ReadRuns(folder));
  return std::move(read.runs);
}

absl::StatusOr<RunEnd> EndIn(const std::string& folder) {
  const std::string path = SummaryPath(folder);
  SL_ASSIGN_OR_RETURN(const std::string text,
                      ReadRegularFile(path, kSummaryBytesMax));
  const auto json =
      nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto text_of = [&](const char* key) -> std::string {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>()
                                                     : "";
  };
  RunEnd end;
  const std::string state = json.is_object() ? text_of("state") : "";
  end.finished = state == wire::JobState_Name(wire::FINISHED);
  if (!end.finished && state != wire::JobState_Name(wire::FAILED)) {
    return absl::DataLossError(absl::StrCat(
        path, " is no summary of a run: it has no state; remove it"));
  }
  end.job = text_of("job");
  end.config_hash = text_of("config_hash");
  if (const auto steps = json.find("steps");
      steps != json.end() && steps->is_number_integer()) {
    end.steps = steps->get<int64_t>();
  }
  wire::JobEnd::Cause cause = wire::JobEnd::CAUSE_UNSPECIFIED;
  wire::JobEnd::Cause_Parse(text_of("cause"), &cause);
  end.end.set_cause(cause);
  end.end.set_reason(text_of("reason"));
  return end;
}

absl::StatusOr<std::string> PutRunAside(const std::string& folder,
                                        bool with_checkpoints) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string aside;
  for (int number = 1; aside.empty() || fs::exists(aside, error); ++number)
    aside = absl::StrCat(folder, "/replaced-", number);
  fs::create_directory(aside, error);
  const auto in = [&](const std::string& name) {
    return absl::StrCat(folder, "/", name);
  };
  // The config may be the one with which this program was started.
  if (!error && fs::exists(in("cluster.textproto"))) {
    fs::copy_file(in("cluster.textproto"),
                  absl::StrCat(aside, "/cluster.textproto"), error);
  }
  std::vector<std::string> names = {"summary.json", kFailureFile, "runs.txt",
                                    "model.safetensors"};
  names.insert(names.end(), std::begin(kRecordFiles), std::end(kRecordFiles));
  if (with_checkpoints) names.emplace_back("checkpoints");
  for (const std::string& name : names) {
    std::error_code ignored;
    if (error || !fs::exists(in(name), ignored)) continue;
    fs::rename(in(name), absl::StrCat(aside, "/", name), error);
  }
  if (!error) return aside;
  return absl::UnavailableError(absl::StrCat(
      "what an earlier run has left in ", folder, " could not be moved into ",
      aside, ": ", error.message(), "; choose another --out"));
}

bool HasRecords(const std::string& folder) {
  for (const char* const name : kRecordFiles) {
    std::error_code error;
    const std::string path = absl::StrCat(folder, "/", name);
    if (std::filesystem::is_regular_file(path, error) &&
        std::filesystem::file_size(path, error) > 0 && !error) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<bool> HasRecordsOf(const std::string& folder, uint64_t run) {
  SL_ASSIGN_OR_RETURN(const std::vector<uint64_t> runs, RunsIn(folder));
  return run != 0 && std::find(runs.begin(), runs.end(), run) != runs.end();
}

absl::StatusOr<std::unique_ptr<RunFiles>> RunFiles::GoOn(
    const std::string& folder, const Origin& origin,
    const coordinator::FilesState& kept) {
  SL_ASSIGN_OR_RETURN(const RunsOfFolder before, ReadRuns(folder));
  if (before.folder != kept.folder() ||
      std::find(before.runs.begin(), before.runs.end(), origin.run) ==
          before.runs.end()) {
    SL_ASSIGN_OR_RETURN(std::unique_ptr<RunFiles> run, Create(folder, origin));
    run->metrics_->LackOthers(kept.metrics());
    run->moves_->LackOthers(kept.moves());
    run->modes_->LackOthers(kept.modes());
    return run;
  }
  SL_ASSIGN_OR_RETURN(const bool of_earlier,
                      HasRecordsOf(folder, origin.goes_on_from));
  std::unique_ptr<RunFiles> run(
      new RunFiles(folder, before.folder, of_earlier));
  run->dropped_ = kept.dropped();
  // Records of steps that are done anew may be gone, or not; this run has none
  // there yet that anybody was told of.
  const bool may_be_shorter = of_earlier && !kept.dropped();
  const auto go_on = [&](const char* name,
                         const coordinator::FilesState::File& file) {
    const std::string path = absl::StrCat(folder, "/", name, ".jsonl");
    return may_be_shorter ? LineFile::Create(path, /*keep=*/true)
                          : LineFile::GoOn(path, file);
  };
  SL_ASSIGN_OR_RETURN(run->metrics_, go_on("metrics", kept.metrics()));
  SL_ASSIGN_OR_RETURN(run->moves_, go_on("moves", kept.moves()));
  SL_ASSIGN_OR_RETURN(run->modes_, go_on("modes", kept.modes()));
  return run;
}

coordinator::FilesState RunFiles::Kept() const {
  coordinator::FilesState kept;
  for (const auto& [file, as] : {std::pair(&metrics_, kept.mutable_metrics()),
                                 std::pair(&moves_, kept.mutable_moves()),
                                 std::pair(&modes_, kept.mutable_modes())}) {
    as->set_bytes((*file)->bytes());
    as->set_lost((*file)->lost());
    as->set_why_lost(std::string((*file)->why().message()));
  }
  kept.set_dropped(dropped_);
  kept.set_folder(token_);
  return kept;
}

absl::StatusOr<std::unique_ptr<RunFiles>> RunFiles::Create(
    const std::string& folder, const Origin& origin) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("cannot create ", folder,
                                                    ": ", error.message(),
                                                    "; choose another --out"));
  }
  SL_ASSIGN_OR_RETURN(const bool keep,
                      HasRecordsOf(folder, origin.goes_on_from));
  std::unique_ptr<RunFiles> run(new RunFiles(folder, origin.folder, keep));
  if (!keep && HasRecords(folder)) {
    SL_ASSIGN_OR_RETURN(run->replaced_,
                        PutRunAside(folder, !origin.has_checkpoint));
  }
  // An earlier run's would say that this one has ended.
  run->RemoveSummary();
  for (const auto& [file, name] :
       {std::pair(&run->metrics_, "metrics"), std::pair(&run->moves_, "moves"),
        std::pair(&run->modes_, "modes")}) {
    SL_ASSIGN_OR_RETURN(
        *file,
        LineFile::Create(absl::StrCat(folder, "/", name, ".jsonl"), keep));
  }
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<LineFile> runs,
                      LineFile::Create(RunsPath(folder), keep));
  if (origin.run != 0) SL_RETURN_IF_ERROR(runs->Append(RunName(origin.run)));
  SL_RETURN_IF_ERROR(
      runs->Append(absl::StrCat(kFolderLine, RunName(origin.folder))));
  return run;
}

bool RunFiles::HasSummary() const {
  std::error_code error;
  return std::filesystem::exists(SummaryPath(folder_), error);
}

void RunFiles::RemoveSummary() {
  (void)unlink(SummaryPath(folder_).c_str());
  (void)unlink(FailurePath(folder_).c_str());
}

absl::Status RunFiles::DropAfter(const LastSteps& last) {
  dropped_ = true;
  if (!kept_) return absl::OkStatus();
  for (std::unique_ptr<LineFile>* const records : {&metrics_, &modes_}) {
    const std::string path = (*records)->path();
    std::ifstream file(path, std::ios::binary);
    std::string kept;
    bool drops = false;
    for (std::string line; std::getline(file, line);) {
      if (IsAfter(nlohmann::json::parse(line, nullptr, false), last)) {
        drops = true;
      } else {
        absl::StrAppend(&kept, line, "\n");
      }
    }
    if (!drops) continue;
    SL_RETURN_IF_ERROR(WriteFileAtomically(path, {kept}));
    SL_ASSIGN_OR_RETURN(*records, LineFile::Create(path, /*keep=*/true));
  }
  return absl::OkStatus();
}

absl::Status RunFiles::AppendMetric(const run::MetricRecord& record) {
  nlohmann::ordered_json line = {
      {"kind", record.kind() == run::MetricRecord::EVAL ? "eval" : "train"},
      {"rank", record.rank()},
      {"step", record.step()},
      {"epoch", record.epoch()},
      {"seconds", record.seconds()}};
  if (record.has_loss()) line["loss"] = record.loss();
  if (record.has_accuracy()) line["accuracy"] = record.accuracy();
  if (record.kind() == run::MetricRecord::TRAIN)
    line["examples_per_second"] = record.examples_per_second();
  for (const auto& [name, value] : std::map<std::string, double>(
           record.value().begin(), record.value().end())) {
    line["values"][name] = value;
  }
  return FirstLoss(*metrics_, metrics_->Append(TextOf(line)));
}

absl::Status RunFiles::AppendMove(const run::MoveRecord& record) {
  const nlohmann::ordered_json line = {{"seconds", record.seconds()},
                                       {"shard", record.shard()},
                                       {"name", record.name()},
                                       {"from_server", record.from_server()},
                                       {"from_thread", record.from_thread()},
                                       {"to_server", record.to_server()},
                                       {"to_thread", record.to_thread()},
                                       {"shard_bytes", record.shard_bytes()},
                                       {"bytes", record.bytes()},
                                       {"copy_micros", record.copy_micros()},
                                       {"pause_micros", record.pause_micros()},
                                       {"reason", record.reason()}};
  return FirstLoss(*moves_, moves_->Append(TextOf(line)));
}

absl::Status RunFiles::AppendMode(const run::ModeRecord& record) {
  const nlohmann::ordered_json line = {
      {"seconds", record.seconds()},
      {"from_clock", record.from_clock()},
      {"from", ModeText(record.from())},
      {"to", ModeText(record.to())},
      {"reason", record.reason()},
      {"pause_micros", record.pause_micros()},
      {"connect_micros", record.connect_micros()},
      {"transfer_micros", record.transfer_micros()},
      {"bytes", record.bytes()},
      {"workers", record.workers()},
      // JSON numbers of many readers have 53 bits.
      {"model_hash", absl::StrFormat("%016x", record.model_hash())}};
  return FirstLoss(*modes_, modes_->Append(TextOf(line)));
}

std::string RunFiles::WhatIsMissing() const {
  std::vector<std::string> parts;
  for (const LineFile* file : {metrics_.get(), moves_.get(), modes_.get()}) {
    if (file->lost() == 0) continue;
    parts.push_back(absl::StrCat(
        file->path(), " lacks ", file->lost(),
        file->lost() == 1 ? " record: " : " records: ", file->why().message()));
  }
  return absl::StrJoin(parts, "; ");
}

absl::Status WriteSummaryFile(const std::string& folder,
                              const run::Summary& summary,
                              config::Checkpoint::Loss on_server_loss) {
  // JSON has no NaN: what is no number is null. What was not measured is left
  // out.
  nlohmann::ordered_json json = {
      {"job", summary.job()},
      {"config_hash", summary.config_hash()},
      {"state", summary.state()},
      {"cause", summary.cause()},
      {"reason", summary.reason()},
      {"about", std::vector<std::string>(summary.about().begin(),
                                         summary.about().end())},
      {"mode", summary.mode()},
      {"seed", summary.seed()},
      {"workers", summary.workers()},
      {"servers", summary.servers()},
      {"data", summary.data()},
      {"data_hash", summary.data_hash()},
      {"steps", summary.steps()},
      {"ended_at", summary.ended_at()},
      {"wall_seconds", summary.wall_seconds()},
      {"examples_per_second", summary.examples_per_second()}};
  if (summary.has_diverged_at_step())
    json["diverged_at_step"] = summary.diverged_at_step();
  if (summary.has_train_loss()) json["train_loss"] = summary.train_loss();
  if (summary.has_test_loss()) json["test_loss"] = summary.test_loss();
  if (summary.has_test_accuracy())
    json["test_accuracy"] = summary.test_accuracy();
  json.update(nlohmann::ordered_json(
      {{"missed_clocks", PercentilesJson(summary.missed_clocks())},
       {"missed_updates", PercentilesJson(summary.missed_updates())},
       {"lead", PercentilesJson(summary.lead())},
       {"missed_clocks_histogram",
        std::vector<uint64_t>(summary.missed_clocks_histogram().begin(),
                              summary.missed_clocks_histogram().end())},
       {"missed_updates_histogram",
        std::vector<uint64_t>(summary.missed_updates_histogram().begin(),
                              summary.missed_updates_histogram().end())},
       {"lead_histogram",
        std::vector<uint64_t>(summary.lead_histogram().begin(),
                              summary.lead_histogram().end())}}));
  PutFigures(summary, ServerMetrics(), &Metric::of_run, &json);
  PutFigures(summary, WorkerMetrics(), &Metric::of_run, &json);
  json.update(nlohmann::ordered_json(
      {{"nonfinite", summary.nonfinite()},
       {"oversized", summary.oversized()},
       {"refused", RefusedJson(summary.refused())},
       {"stragglers", summary.stragglers()},
       {"shards_moved", summary.shards_moved()},
       {"bytes_moved", summary.bytes_moved()},
       {"move_pause_micros", PercentilesJson(summary.move_pause_micros())},
       {"mode_changes", summary.mode_changes()},
       {"workers_lost", std::vector<std::string>(summary.workers_lost().begin(),
                                                 summary.workers_lost().end())},
       {"traceback", TracebacksJson(summary)},
       {"stood_still", StoodStillJson(summary)},
       {"worker", WorkersJson(summary)},
       {"program", ProgramsJson(summary)},
       {"files_incomplete", summary.files_incomplete()},
       {"stopped", summary.stopped()},
       {"model_sha256", summary.model_sha256()}}));
  if (summary.examples_done() > 0) {  // Elastic sampling counts them.
    json["examples_done"] = summary.examples_done();
    json["examples_given_again"] = summary.examples_given_again();
  }
  if (summary.replicas() > 0 || summary.servers_lost_size() > 0) {
    json["replicas"] = summary.replicas();
    json["servers_lost"] = std::vector<std::string>(
        summary.servers_lost().begin(), summary.servers_lost().end());
    json["shards_taken_over"] = summary.shards_taken_over();
    json["copies_made"] = summary.copies_made();
  }
  json["checkpoints"] = summary.checkpoints();
  json["checkpoints_failed"] = summary.checkpoints_failed();
  if (summary.has_last_checkpoint())
    json["last_checkpoint"] = CheckpointJson(summary.last_checkpoint());
  if (summary.has_best_checkpoint())
    json["best_checkpoint"] = BestCheckpointJson(summary.best_checkpoint());
  if (summary.has_resumed_from())
    json["resumed_from"] = CheckpointJson(summary.resumed_from());
  const std::string text = TextOf(json, 2) + "\n";
  const absl::string_view part(text);
  SL_RETURN_IF_ERROR(
      WriteFileAtomically(SummaryPath(folder), absl::MakeConstSpan(&part, 1)));
  if (HasFailed(summary)) {
    return WriteFailurePage({.folder = folder,
                             .summary = summary,
                             .on_server_loss = on_server_loss});
  }
  (void)unlink(FailurePath(folder).c_str());
  return absl::OkStatus();
}

}  // namespace slackline
