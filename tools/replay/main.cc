// slackline_replay: trains by a trace of delays, in one process and without
// time passing. `slackline replay` and `slackline compare` start it.
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/blas/open_blas.h"
#include "common/config/cluster_config.h"
#include "common/delays/delay_trace.h"
#include "common/process/exit_code.h"
#include "common/process/logging.h"
#include "common/process/stop_signal.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/version.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tools/replay/replayer.h"
#include "worker/data/load_data.h"
#include "worker/model/compute.h"
#include "worker/model/model.h"
#include "worker/session/model_file.h"

namespace slackline {
namespace {

constexpr char kReplay[] = "a replay";
constexpr absl::Duration kTellEvery = absl::Seconds(5);

struct Flags {
  std::string cluster;
  std::string delays;
  std::string data_dir;
  std::string out;
  ConfigOverrides overrides;
};

std::string AccuracyText(double accuracy) {
  return absl::StrFormat(", accuracy %.2f %%", 100 * accuracy);
}

absl::StatusOr<DelayTrace> TraceFor(const Flags& flags,
                                    const config::ClusterConfig& config,
                                    const DataSplit& data) {
  if (!IsSyntheticSpec(flags.delays)) return ReadRecordedTrace(flags.delays);
  SL_ASSIGN_OR_RETURN(const SyntheticDelays delays,
                      ParseSyntheticDelays(flags.delays));
  SL_ASSIGN_OR_RETURN(const LearningRateSchedule::JobLength length,
                      ReplayLength(config, data));
  return MakeTrace(delays, static_cast<int>(WorkerProcesses(config).size()),
                   length.steps_total,
                   static_cast<uint64_t>(config.train().seed()));
}

absl::Status Replay(const Flags& flags, const config::ClusterConfig& config) {
  SL_RETURN_IF_ERROR(CheckHasModel(config, kReplay));
  std::atomic<bool> interrupted{false};
  const StopSignal stop_signal([&](int) { interrupted.store(true); });
  // As workers do: other kernels round in another way.
  const OpenBlasKernels kernels = ChooseOpenBlasKernels();
  if (!kernels.sentence.empty()) {
    spdlog::log(kernels.changed ? spdlog::level::info : spdlog::level::warn,
                kernels.sentence);
  }
  SL_RETURN_IF_ERROR(SetComputeThreads(WorkerProcesses(config)[0].threads));
  SL_ASSIGN_OR_RETURN(const DataSplit data,
                      LoadData(config.data(), config.model(), flags.data_dir));
  spdlog::info("data: {}", data.description);
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      CreateModel(config.model(), data.train->features(),
                                  data.train->classes()));
  SL_ASSIGN_OR_RETURN(DelayTrace trace, TraceFor(flags, config, data));
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<RunFiles> files,
                      RunFiles::Create(flags.out, {}));
  absl::Status written;
  absl::Time next_line = TimeSource().Now() + kTellEvery;
  Replayer::Callbacks callbacks;
  callbacks.record = [&](const run::MetricRecord& record) {
    written.Update(files->AppendMetric(record));
    if (record.kind() != run::MetricRecord::EVAL) return;
    spdlog::info("step {}: test loss {:.4f}{}", record.step(), record.loss(),
                 record.has_accuracy() ? AccuracyText(record.accuracy()) : "");
  };
  callbacks.proceed = [&](Clock done, Clock total) {
    if (interrupted.load()) {
      return absl::CancelledError(
          absl::StrCat("interrupted at step ", done, " of ", total));
    }
    if (TimeSource().Now() >= next_line) {
      next_line = TimeSource().Now() + kTellEvery;
      spdlog::info("step {} of {}", done, total);
    }
    return written;
  };
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<Replayer> replayer,
                      Replayer::Create(config, std::move(trace), &data,
                                       model.get(), std::move(callbacks)));
  absl::StatusOr<run::Summary> done = replayer->Run();
  run::Summary summary =
      done.ok() ? *done : replayer->SummaryOfFailure(done.status());
  summary.set_mode(absl::StrCat("replay of ", flags.delays));
  const auto on_server_loss = config.checkpoint().on_server_loss();
  run::Program& self = *summary.add_program();
  self.set_program("slackline_replay");
  self.set_version(VersionNumber());
  self.set_commit(BuildCommit());
  self.set_build_id(BuildId());
  if (!done.ok()) {
    if (const absl::Status kept = files->WriteSummary(summary, on_server_loss);
        !kept.ok())
      spdlog::error("{}", std::string(kept.message()));
    return done.status();
  }
  SL_ASSIGN_OR_RETURN(
      *summary.mutable_model_sha256(),
      WriteModelFile(*model, absl::StrCat(flags.out, "/model.safetensors"),
                     {{"job", config.job()}, {"delays", flags.delays}}));
  SL_RETURN_IF_ERROR(files->WriteSummary(summary, on_server_loss));
  spdlog::info(
      "final model: train loss {:.6f}, test loss {:.6f}{}, sha256 {}",
      summary.train_loss(), summary.test_loss(),
      summary.has_test_accuracy() ? AccuracyText(summary.test_accuracy()) : "",
      summary.model_sha256());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  StopSignal::Block();
  CLI::App app(
      "Trains by a trace of delays: every gradient from exactly the version "
      "that the trace names,\nin one process, without time passing. The same "
      "config, delays and seed give the same bits.\nExit code: 0 done, 1 "
      "failed or interrupted (the last line says why), 2 wrong usage.",
      "slackline_replay");
  app.set_version_flag("--version", VersionText("slackline_replay"));
  Flags flags;
  app.add_option("--cluster", flags.cluster,
                 "Cluster config, a text-format file; its mode plays no part")
      ->required();
  app.add_option("--delays", flags.delays,
                 "constant:S, uniform:S, geometric:S or straggler:S with the "
                 "largest delay in clocks, or the folder of a run that was "
                 "recorded with train.trace")
      ->required();
  app.add_option("--data-dir", flags.data_dir,
                 "Folder with the data sets that the config names");
  app.add_option("--out", flags.out,
                 "Folder for summary.json, metrics.jsonl and the model")
      ->required();
  app.add_option("--mode", flags.overrides.mode, "As for slackline_worker");
  app.add_option("--set", flags.overrides.sets,
                 "Change a field of the config: path=value")
      ->allow_extra_args(false);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(flags.cluster, flags.overrides);
  const absl::Status spec = IsSyntheticSpec(flags.delays)
                                ? ParseSyntheticDelays(flags.delays).status()
                                : absl::OkStatus();
  for (const absl::Status& status : {config.status(), spec}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    return kExitUsage;
  }
  SetUpLogging("replay", TimeSource());
  const absl::Status status = Replay(flags, *config);
  if (!status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return kExitFailed;
  }
  return 0;
}

}  // namespace
}  // namespace slackline

int main(int argc, char** argv) { return slackline::Main(argc, argv); }
