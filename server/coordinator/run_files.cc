#include "server/coordinator/run_files.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "absl/strings/str_format.h"
#include "common/io/atomic_file.h"
#include "common/status.h"

namespace slackline {
namespace {

nlohmann::ordered_json PercentilesJson(const run::Percentiles& percentiles) {
  return {{"p50", percentiles.p50()},
          {"p99", percentiles.p99()},
          {"max", percentiles.max()}};
}

nlohmann::ordered_json WorkersJson(const run::Summary& summary) {
  nlohmann::ordered_json workers = nlohmann::ordered_json::array();
  for (const run::WorkerSummary& worker : summary.worker()) {
    workers.push_back({{"rank", worker.rank()},
                       {"steps", worker.steps()},
                       {"examples", worker.examples()},
                       {"compute_seconds", worker.compute_seconds()},
                       {"wait_seconds", worker.wait_seconds()},
                       {"bytes_pushed", worker.bytes_pushed()},
                       {"bytes_pulled", worker.bytes_pulled()}});
  }
  return workers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFiles>> RunFiles::Create(
    const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat("cannot create ", folder,
                                                    ": ", error.message(),
                                                    "; choose another --out"));
  }
  std::unique_ptr<RunFiles> run(new RunFiles(folder));
  for (const auto& [file, name] :
       {std::pair(&run->metrics_, "metrics"), std::pair(&run->moves_, "moves"),
        std::pair(&run->modes_, "modes")}) {
    const std::string path = absl::StrCat(folder, "/", name, ".jsonl");
    file->open(path, std::ios::trunc);
    if (!*file) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot write ", path, "; choose another --out"));
    }
  }
  return run;
}

absl::Status RunFiles::AppendMetric(const run::MetricRecord& record) {
  nlohmann::ordered_json line = {
      {"kind", record.kind() == run::MetricRecord::EVAL ? "eval" : "train"},
      {"rank", record.rank()},
      {"step", record.step()},
      {"epoch", record.epoch()},
      {"seconds", record.seconds()},
      {"loss", record.loss()}};
  if (record.kind() == run::MetricRecord::EVAL) {
    line["accuracy"] = record.accuracy();
  } else {
    line["examples_per_second"] = record.examples_per_second();
  }
  metrics_ << line.dump() << '\n' << std::flush;
  if (!metrics_) {
    return absl::DataLossError(
        absl::StrCat("cannot write ", folder_, "/metrics.jsonl"));
  }
  return absl::OkStatus();
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
  moves_ << line.dump() << '\n' << std::flush;
  if (!moves_) {
    return absl::DataLossError(
        absl::StrCat("cannot write ", folder_, "/moves.jsonl"));
  }
  return absl::OkStatus();
}

absl::Status RunFiles::AppendMode(const run::ModeRecord& record) {
  const nlohmann::ordered_json line = {
      {"seconds", record.seconds()},
      {"from_clock", record.from_clock()},
      {"from", record.from()},
      {"to", record.to()},
      {"reason", record.reason()},
      {"pause_micros", record.pause_micros()},
      {"connect_micros", record.connect_micros()},
      {"transfer_micros", record.transfer_micros()},
      {"bytes", record.bytes()},
      {"workers", record.workers()},
      // JSON numbers of many readers have 53 bits.
      {"model_hash", absl::StrFormat("%016x", record.model_hash())}};
  modes_ << line.dump() << '\n' << std::flush;
  if (!modes_) {
    return absl::DataLossError(
        absl::StrCat("cannot write ", folder_, "/modes.jsonl"));
  }
  return absl::OkStatus();
}

absl::Status RunFiles::WriteSummary(const run::Summary& summary) {
  const nlohmann::ordered_json json = {
      {"job", summary.job()},
      {"mode", summary.mode()},
      {"seed", summary.seed()},
      {"workers", summary.workers()},
      {"servers", summary.servers()},
      {"data", summary.data()},
      {"steps", summary.steps()},
      {"wall_seconds", summary.wall_seconds()},
      {"examples_per_second", summary.examples_per_second()},
      {"train_loss", summary.train_loss()},
      {"test_loss", summary.test_loss()},
      {"test_accuracy", summary.test_accuracy()},
      {"staleness_clocks", PercentilesJson(summary.staleness_clocks())},
      {"staleness_updates", PercentilesJson(summary.staleness_updates())},
      {"staleness_clocks_histogram",
       std::vector<uint64_t>(summary.staleness_clocks_histogram().begin(),
                             summary.staleness_clocks_histogram().end())},
      {"staleness_updates_histogram",
       std::vector<uint64_t>(summary.staleness_updates_histogram().begin(),
                             summary.staleness_updates_histogram().end())},
      {"dropped", summary.dropped()},
      {"bytes_pushed", summary.bytes_pushed()},
      {"bytes_pulled", summary.bytes_pulled()},
      {"retries", summary.retries()},
      {"shards_moved", summary.shards_moved()},
      {"bytes_moved", summary.bytes_moved()},
      {"move_pause_micros", PercentilesJson(summary.move_pause_micros())},
      {"mode_changes", summary.mode_changes()},
      {"workers_lost", std::vector<std::string>(summary.workers_lost().begin(),
                                                summary.workers_lost().end())},
      {"worker", WorkersJson(summary)},
      {"stopped", summary.stopped()},
      {"model_sha256", summary.model_sha256()}};
  const std::string text = json.dump(2) + "\n";
  const absl::string_view part(text);
  return WriteFileAtomically(absl::StrCat(folder_, "/summary.json"),
                             absl::MakeConstSpan(&part, 1));
}

}  // namespace slackline
