// slackline: the user's tool. Reads the command line and calls the subcommand.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/cli/commands.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/experiment_flags.h"
#include "tools/cli/job_flags.h"
#include "tools/cli/run.h"
#include "tools/cli/top_command.h"

namespace {

// The other binaries stand beside this one.
slackline::Invocation OwnInvocation(int argc, char** argv) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  return {.program = error ? argv[0] : self.string(),
          .bin_dir = error ? "." : self.parent_path().string(),
          .arguments = {argv + std::min(argc, 1), argv + argc}};
}

}  // namespace

int main(int argc, char** argv) {
  using slackline::RunOptions;

  CLI::App app(
      "Trains models with sharded parameter servers or all-reduce.\n"
      "Exit code: 0 done, 1 failed, 2 wrong usage. Results go to stdout, the "
      "rest to stderr.");
  app.name("slackline");
  app.set_version_flag("--version", "slackline " SLACKLINE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  slackline run examples/mnist_mlp.textproto --mode ssp:3\n"
      "  slackline ablate examples/mnist_mlp.textproto --over "
      "sync.ssp.staleness=0,3,inf");
  int exit_code = slackline::kExitDone;

  const slackline::Invocation invocation = OwnInvocation(argc, argv);
  RunOptions run;
  run.bin_dir = invocation.bin_dir;
  std::vector<std::string> sets;
  std::string seed, epochs;
  bool no_progress = false;
  CLI::App* const run_command = app.add_subcommand(
      "run",
      "Runs a whole job on this machine: starts its servers and workers, shows "
      "its progress, prints its results.\n"
      "Ctrl-C stops the job, a second one kills it.");
  run_command
      ->add_option("CONFIG", run.config_path, "The cluster config, a text file")
      ->required();
  run_command->add_option(
      "--mode", run.overrides.mode,
      absl::StrCat(slackline::kModeHelp,
                   "; replaces the config's mode or phases"));
  run_command->add_option("--seed", seed, "Same as --set train.seed=SEED");
  run_command->add_option("--epochs", epochs,
                          "Same as --set train.epochs=EPOCHS");
  run_command
      ->add_option("--set", sets,
                   "PATH=VALUE changes one field of the config, for example "
                   "worker[0].count=2; may be repeated")
      ->allow_extra_args(false);
  run_command->add_option(
      "--data-dir", run.data_dir,
      "Folder below which the data are; default: ~/.cache/slackline/data, into "
      "which MNIST is downloaded (without a network: a generated stand-in)");
  run_command->add_option(
      "--out", run.out_dir,
      "New or empty folder for config, logs, metrics, model and summary; "
      "default: runs/JOB-MODE-TIME");
  run_command
      ->add_option("--restart-workers", run.restart_workers,
                   "How often each worker that dies is started again; "
                   "default: 0")
      ->check(CLI::Range(0, 1000));
  run_command->add_flag("--no-progress", no_progress,
                        "Only say when something is wrong");
  run_command->add_option(
      "--bin-dir", run.bin_dir,
      "Folder of slackline_server and slackline_worker; default: that of "
      "slackline itself");
  run_command->callback([&] {
    run.overrides.sets = sets;
    if (!seed.empty()) {
      run.overrides.sets.push_back(absl::StrCat("train.seed=", seed));
    }
    if (!epochs.empty()) {
      run.overrides.sets.push_back(absl::StrCat("train.epochs=", epochs));
    }
    run.progress = !no_progress;
    exit_code = slackline::Run(run);
  });

  slackline::StatusOptions status;
  CLI::App* const status_command = app.add_subcommand(
      "status", "Shows how a running job stands, member by member.");
  slackline::AddJobFlags(status_command, &status.job);
  slackline::AddTableFlags(status_command, &status.table);
  status_command->add_flag("--json", status.json,
                           "Everything the coordinator knows, as JSON");
  status_command->get_option("--json")->excludes(
      status_command->get_option("--shards"));
  status_command->callback([&] { exit_code = slackline::ShowStatus(status); });

  slackline::TopOptions top;
  int interval_ms = 1000;
  CLI::App* const top_command = app.add_subcommand(
      "top",
      "Shows the status of a running job again and again, until the job ends "
      "or Ctrl-C.");
  slackline::AddJobFlags(top_command, &top.job);
  slackline::AddTableFlags(top_command, &top.table);
  top_command
      ->add_option("--interval-ms", interval_ms,
                   "Time between two; default: 1000")
      ->check(CLI::Range(50, 3600000));
  top_command
      ->add_option("--count", top.count,
                   "Ends after so many; default: no such end")
      ->check(CLI::Range(1, 1000000000));
  top_command->callback([&] {
    top.interval = absl::Milliseconds(interval_ms);
    exit_code = slackline::ShowTop(top);
  });

  slackline::StopOptions stop;
  CLI::App* const stop_command = app.add_subcommand(
      "stop", "Ends a running job now; it counts as failed.");
  slackline::AddJobFlags(stop_command, &stop.job);
  stop_command->add_option("--reason", stop.reason,
                           "What logs and status say about it; default: "
                           "stopped by the user");
  stop_command->callback([&] { exit_code = slackline::StopJob(stop); });

  slackline::AddModeCommands(&app, &exit_code);
  slackline::AddRebalanceCommands(run.bin_dir, &app, &exit_code);

  slackline::AddExperimentCommands(invocation, &app, &exit_code);

  std::vector<std::string> folders;
  CLI::App* const summary_command = app.add_subcommand(
      "summary", "Prints the results of finished runs in one table.");
  summary_command
      ->add_option("DIR", folders, "Folders of runs, each with summary.json")
      ->required();
  summary_command->callback(
      [&] { exit_code = slackline::ShowSummaries(folders); });

  CLI::App* const data_command =
      app.add_subcommand("data", "Gets training data.");
  data_command->require_subcommand(1);
  std::string data_set, fetch_dir, stand_in_dir;
  CLI::App* const fetch_command = data_command->add_subcommand(
      "fetch",
      "Downloads a public data set and checks it. Overwrites nothing.");
  fetch_command
      ->add_option("NAME", data_set,
                   "mnist; for a9a it says how to get it by hand")
      ->required();
  fetch_command->add_option("--data-dir", fetch_dir,
                            "Goes into the folder NAME in this one; default: "
                            "~/.cache/slackline/data");
  fetch_command->callback(
      [&] { exit_code = slackline::FetchDataSet(data_set, fetch_dir); });
  CLI::App* const stand_in_command = data_command->add_subcommand(
      "stand-in",
      "Generates pictures in the files and sizes of MNIST, for machines "
      "without a network. They are not MNIST.");
  stand_in_command
      ->add_option("--data-dir", stand_in_dir,
                   "Goes into the folder mnist in this one")
      ->required();
  stand_in_command->callback(
      [&] { exit_code = slackline::WriteStandIn(stand_in_dir); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version also come this way.
    return app.exit(error) == 0 ? slackline::kExitDone : slackline::kExitUsage;
  }
  return exit_code;
}
