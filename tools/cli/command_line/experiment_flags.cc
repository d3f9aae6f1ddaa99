#include "tools/cli/command_line/experiment_flags.h"

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"
#include "common/process/exit_code.h"
#include "tools/cli/command_line/job_flags.h"
#include "tools/cli/display.h"
#include "tools/cli/experiment/compare.h"
#include "tools/cli/experiment/replay_command.h"
#include "tools/cli/experiment/report_command.h"
#include "tools/cli/run/track_command.h"
#include "tools/experiment/ablation.h"
#include "tools/experiment/plan.h"

namespace slackline {
namespace {

constexpr char kDataDirHelp[] =
    "Folder below which the data are; default: ~/.cache/slackline/data, into "
    "which MNIST is downloaded (without a network: a generated stand-in)";

// The command that goes on where this one was cut off.
std::string ResumeCommand(const Invocation& invocation) {
  std::vector<std::string> words = {"slackline"};
  bool of_worker = false;
  for (const std::string& argument : invocation.arguments) {
    of_worker = of_worker || argument == "--";
    const bool once = argument == "--fresh" || argument == "--retry-failed" ||
                      argument == "--dry-run";
    if (!once || of_worker) words.push_back(argument);
  }
  return ShellLine(words);
}

int Complain(const std::string& subcommand, const absl::Status& status) {
  Display().Print(
      absl::StrCat("slackline ", subcommand, ": ", status.message()));
  return kExitUsage;
}

// What compare and ablate have in common.
void AddGridFlags(CLI::App* command, CompareOptions* options,
                  std::string* seeds) {
  command->add_option("--seeds", *seeds,
                      "How many (3), which (4,8) or from where to where "
                      "(7-9); default: those of the experiment, else 3");
  command->add_option("--out", options->out_dir,
                      "Folder of the experiment; if it has finished runs with "
                      "the same settings, these are kept. Default: "
                      "experiments/NAME");
  command->add_option("--data-dir", options->data_dir, kDataDirHelp);
  command->add_option("--only", options->only,
                      "Only variants with such a name; * and ? stand for any "
                      "characters and for one");
  command->add_flag("--dry-run", options->dry_run,
                    "Only check, list the runs and say how long they take");
  command->add_flag("--fresh", options->fresh,
                    "Also make the runs again that are finished");
  command->add_flag("--retry-failed", options->retry_failed,
                    "Also make the runs again that have failed");
  command->add_flag("--report,!--no-report", options->report,
                    "The report at the end, the default");
  command
      ->add_option("--track", options->track,
                   absl::StrCat("Sends the runs, as children of one for the "
                                "experiment, to an experiment tracker: ",
                                kTrackersHelp,
                                "; default: those of the base config's track"))
      ->check(TrackerProblem)
      ->allow_extra_args(false);
  command->add_option("--bin-dir", options->bin_dir,
                      "Folder of the other programs; default: that of "
                      "slackline itself");
}

CompareOptions GridOptions(const Invocation& invocation,
                           const std::string& subcommand) {
  CompareOptions options;
  options.subcommand = subcommand;
  options.bin_dir = invocation.bin_dir;
  options.program = invocation.program;
  options.command = ResumeCommand(invocation);
  return options;
}

constexpr char kWorkerCommandHelp[] =
    "\nWhat stands after -- is the program of all workers, as for slackline "
    "run.";

struct CompareFlags {
  CompareOptions grid;
  std::vector<std::string> worker_command;
  std::string file;
  std::string seeds;
};

int RunCompare(const CompareFlags& flags) {
  absl::StatusOr<ExperimentSource> source = LoadExperiment(flags.file);
  if (!source.ok()) return Complain("compare", source.status());
  source->worker_command = flags.worker_command;
  if (!flags.seeds.empty()) {
    const absl::StatusOr<std::vector<int64_t>> seeds =
        ParseSeeds("--seeds", flags.seeds);
    if (!seeds.ok()) return Complain("compare", seeds.status());
    *source->experiment.mutable_seed() = {seeds->begin(), seeds->end()};
    source->origins.Set("seed", "--seeds");
  }
  return CompareVariants(*source, flags.grid);
}

void AddCompare(const Invocation& invocation, CLI::App* app, int* exit_code) {
  const auto flags = std::make_shared<CompareFlags>();
  flags->grid = GridOptions(invocation, "compare");
  flags->worker_command = invocation.worker_command;
  CLI::App* const command = app->add_subcommand(
      "compare",
      absl::StrCat("Runs an experiment: one config in several variants, each "
                   "from several seeds, one run after the other; then makes "
                   "its report.\n"
                   "The same command again goes on where it was stopped: "
                   "finished runs are kept. Ctrl-C stops it, a second one "
                   "kills it.",
                   kWorkerCommandHelp));
  command
      ->add_option("EXPERIMENT", flags->file,
                   "The experiment, a text file (docs/manual/experiments.md)")
      ->required();
  AddGridFlags(command, &flags->grid, &flags->seeds);
  command->footer(
      "Examples:\n"
      "  slackline compare modes.textproto --dry-run\n"
      "  slackline compare modes.textproto --seeds 5 --only 'ssp-*'");
  command->callback([=] { *exit_code = RunCompare(*flags); });
}

struct AblateFlags {
  CompareOptions grid;
  AblationOptions ablation;
  std::vector<std::string> worker_command;
  std::string seeds = "3";
  std::string tune_seeds;
};

int RunAblate(AblateFlags flags) {
  const absl::StatusOr<std::vector<int64_t>> seeds =
      ParseSeeds("--seeds", flags.seeds);
  if (!seeds.ok()) return Complain("ablate", seeds.status());
  flags.ablation.seeds = *seeds;
  if (!flags.tune_seeds.empty()) {
    const absl::StatusOr<std::vector<int64_t>> tune_seeds =
        ParseSeeds("--tune-seeds", flags.tune_seeds, kFirstTuneSeed);
    if (!tune_seeds.ok()) return Complain("ablate", tune_seeds.status());
    flags.ablation.tune_seeds = *tune_seeds;
  }
  absl::StatusOr<ExperimentSource> source = MakeAblation(flags.ablation);
  if (!source.ok()) return Complain("ablate", source.status());
  source->worker_command = flags.worker_command;
  return CompareVariants(*source, flags.grid);
}

void AddAblate(const Invocation& invocation, CLI::App* app, int* exit_code) {
  const auto flags = std::make_shared<AblateFlags>();
  flags->grid = GridOptions(invocation, "ablate");
  flags->worker_command = invocation.worker_command;
  AblationOptions* const ablation = &flags->ablation;
  CLI::App* const command = app->add_subcommand(
      "ablate",
      absl::StrCat("Runs an experiment that is given by flags: a config with "
                   "every combination of values for one or more fields. "
                   "Otherwise as compare.",
                   kWorkerCommandHelp));
  command
      ->add_option("CONFIG", ablation->base, "The cluster config, a text file")
      ->required();
  command
      ->add_option("--over", ablation->over,
                   "FIELD=VALUE,VALUE,... where FIELD is one as for --set, or "
                   "mode, replay, delays, workers (of the last group) or "
                   "rate_factor (of the learning rate of any optimizer); "
                   "commas in {} and [] do not separate, and 'inf' for a "
                   "staleness is mode "
                   "asp. May be repeated: all combinations are run")
      ->required()
      ->allow_extra_args(false);
  command
      ->add_option("--set", ablation->sets,
                   "PATH=VALUE changes one field of the config in all "
                   "variants, for example train.epochs=3; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--tune", ablation->tune,
                   "FIELD=VALUE,VALUE,... as for --over: every variant is "
                   "tried with these values first, and its runs have the best "
                   "of them, for example rate_factor=0.25,0.5,1,2; may be "
                   "repeated: all combinations are tried")
      ->allow_extra_args(false);
  command->add_option("--tune-seeds", flags->tune_seeds,
                      "Of the tries, as for --seeds; how many are counted "
                      "from 1001. Default: 1001 alone");
  command
      ->add_option("--tune-set", ablation->tune_sets,
                   "PATH=VALUE changes one field in the tries, for example "
                   "train.epochs=1; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--mode", ablation->mode,
                      absl::StrCat("In all variants: ", kModeHelp));
  command->add_option(
      "--replay", ablation->replay,
      "In all variants: not a job of processes, but the replay of these "
      "delays (see slackline replay --help)");
  command->add_option("--delays", ablation->delays,
                      absl::StrCat("In all variants: ", kDelaysHelp));
  command->add_option("--name", ablation->name,
                      "Of the experiment; default: made of config and fields");
  command->add_option("--title", ablation->title, "Of the report");
  command->add_option("--baseline", ablation->baseline,
                      "The variant that the others are compared with; default: "
                      "the first");
  command->add_option("--stop-accuracy", ablation->stop_accuracy,
                      "Each run ends when an evaluation reaches it: in (0, 1]");
  command->add_option("--stop-loss", ablation->stop_loss,
                      "Each run ends when an evaluation is at most this");
  command->add_option("--target-accuracy", ablation->target_accuracy,
                      "The report says when each variant first reached it; "
                      "default: --stop-accuracy");
  command->add_option("--target-loss", ablation->target_loss,
                      "Likewise; default: --stop-loss");
  command->add_option("--parallel", ablation->parallel,
                      "So many runs at the same time; wall times are "
                      "comparable at 1 only, the default");
  AddGridFlags(command, &flags->grid, &flags->seeds);
  command->footer(
      "Examples:\n"
      "  slackline ablate examples/mnist_mlp.textproto --over "
      "sync.ssp.staleness=0,1,3,7,inf --seeds 5\n"
      "  slackline ablate examples/mnist_mlp.textproto --over workers=2,4 "
      "--over 'optimizer={sgd{learning_rate:0.1}},{adam{learning_rate:0.001}}'"
      "\n"
      "  slackline ablate examples/mnist_mlp.textproto --over "
      "replay=constant:0,uniform:8,geometric:8 --stop-accuracy 0.97\n"
      "  slackline ablate examples/mnist_mlp.textproto --over "
      "mode=bsp,ssp:3,asp --tune rate_factor=0.25,0.5,1,2 --tune-set "
      "train.epochs=1");
  command->callback([=] { *exit_code = RunAblate(*flags); });
}

void AddReplay(const Invocation& invocation, CLI::App* app, int* exit_code) {
  const auto replay = std::make_shared<ReplayOptions>();
  replay->bin_dir = invocation.bin_dir;
  CLI::App* const command = app->add_subcommand(
      "replay",
      "Trains with given delays, in one process and without a network: the "
      "same delays give the same model, bit by bit.");
  command
      ->add_option("CONFIG", replay->config_path,
                   "The cluster config, a text file")
      ->required();
  command
      ->add_option(
          "--delays", replay->delays,
          "constant:C, uniform:C, geometric:C or straggler:C, with the largest "
          "delay C in clocks; or the folder of a run with train.trace=true, "
          "whose delays are repeated")
      ->required();
  command->add_option("--mode", replay->overrides.mode, kModeHelp);
  command
      ->add_option("--set", replay->overrides.sets,
                   "PATH=VALUE changes one field of the config; may be "
                   "repeated")
      ->allow_extra_args(false);
  AddTrainFlags(command, &replay->overrides.sets);
  command->add_option("--data-dir", replay->data_dir, kDataDirHelp);
  command->add_option(
      "--out", replay->out_dir,
      "New or empty folder for config, metrics, model and summary; default: "
      "runs/JOB-replay-DELAYS-TIME");
  command->add_option("--bin-dir", replay->bin_dir,
                      "Folder of slackline_replay; default: that of slackline "
                      "itself");
  command->footer(
      "Example: slackline replay examples/mnist_mlp.textproto --delays "
      "uniform:2");
  command->callback([=] { *exit_code = Replay(*replay); });
}

void AddReport(const Invocation& invocation, CLI::App* app, int* exit_code) {
  const auto report = std::make_shared<ReportOptions>();
  report->bin_dir = invocation.bin_dir;
  CLI::App* const command = app->add_subcommand(
      "report",
      "Makes the report of an experiment again, from what its folder has. Of "
      "a single run, TensorBoard files of its metrics and images, also while "
      "it goes on.");
  command
      ->add_option("DIR", report->folder,
                   "Folder that compare, ablate or run has written")
      ->required();
  command->add_option("--bin-dir", report->bin_dir,
                      "Folder of slackline_report.py; default: that of "
                      "slackline itself");
  command->footer(
      "Examples: slackline report experiments/modes\n"
      "          slackline report runs/mine && tensorboard --logdir runs");
  command->callback([=] { *exit_code = MakeReport(*report); });
}

void AddTrack(const Invocation& invocation, CLI::App* app, int* exit_code) {
  const auto track = std::make_shared<TrackOptions>();
  track->bin_dir = invocation.bin_dir;
  CLI::App* const command = app->add_subcommand(
      "track",
      "Sends the records of a run to experiment trackers: config, commit, "
      "hashes, losses, accuracy, throughput, staleness and waiting. A run that "
      "goes on is followed until its end; Ctrl-C ends the following, a second "
      "one at once. Of an experiment, every run is a child of one for the "
      "whole.\n"
      "The same command again sends what is new.");
  command
      ->add_option("DIR", track->folder,
                   "Folder that run, compare or ablate has written")
      ->required();
  command
      ->add_option("--to", track->to,
                   absl::StrCat("The tracker: ", kTrackersHelp))
      ->required()
      ->check(TrackerProblem)
      ->allow_extra_args(false);
  command->add_option("--project", track->project,
                      "The experiment of MLflow, or the project of wandb; "
                      "default: the job, or the experiment");
  command->add_flag("--model", track->model, "Also sends the model's file");
  command->add_flag("--follow,!--no-follow", track->follow,
                    "Follows what goes on until its end, the default");
  command->add_option("--bin-dir", track->bin_dir,
                      "Folder of slackline_track.py; default: that of "
                      "slackline itself");
  command->footer(
      "Examples:\n"
      "  slackline track runs/mine --to mlflow:http://tracker:5000\n"
      "  slackline track experiments/modes --to wandb:offline --to "
      "tensorboard");
  command->callback([=] { *exit_code = Track(*track); });
}

}  // namespace

void AddExperimentCommands(const Invocation& invocation, CLI::App* app,
                           int* exit_code) {
  AddCompare(invocation, app, exit_code);
  AddAblate(invocation, app, exit_code);
  AddReplay(invocation, app, exit_code);
  AddReport(invocation, app, exit_code);
  AddTrack(invocation, app, exit_code);
}

}  // namespace slackline
