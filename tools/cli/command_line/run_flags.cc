#include "tools/cli/command_line/run_flags.h"

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/command_line/job_flags.h"
#include "tools/cli/job/timeline_collection.h"
#include "tools/cli/launch/slurm_tools.h"
#include "tools/cli/run/run.h"
#include "tools/cli/run/summary_command.h"
#include "tools/cli/run/track_command.h"

namespace slackline {

namespace {

constexpr char kSlurmGroup[] = "Slurm, outside of an allocation";

// Each is a field of launch.slurm.
void AddSlurmFlags(CLI::App* command, RunOptions* run) {
  struct Flag {
    const char* name;
    const char* field;
    const char* help;
  };
  for (const Flag& flag :
       {Flag{"--partition", "partition", "The partition of the batch job"},
        Flag{"--account", "account", "The account that is charged"},
        Flag{"--qos", "qos", "Its quality of service"},
        Flag{"--time", "time",
             "Its time limit, as in 30 (minutes), 2:00:00 or 1-12"},
        Flag{"--constraint", "constraint", "Features that its nodes have"}}) {
    command
        ->add_option_function<std::string>(
            flag.name,
            [run, flag](const std::string& value) {
              run->slurm_sets.push_back(
                  absl::StrCat("launch.slurm.", flag.field, "=", value));
            },
            absl::StrCat(flag.help, "; as launch.slurm.", flag.field))
        ->group(kSlurmGroup);
  }
  command
      ->add_option("--slurm-option", run->slurm_options,
                   "One more option for sbatch, as in "
                   "--slurm-option=--exclusive; may be repeated; beside those "
                   "of launch.slurm.option")
      ->allow_extra_args(false)
      ->group(kSlurmGroup);
  command
      ->add_flag_callback(
          "--requeue",
          [run] { run->slurm_sets.emplace_back("launch.slurm.requeue=true"); },
          "A job that was suspended by SIGTERM, when it is preempted or its "
          "time is over, is queued again and goes on from its checkpoint; as "
          "launch.slurm.requeue")
      ->group(kSlurmGroup);
  command
      ->add_flag("--print", run->print_script,
                 "Prints the batch script, and submits nothing; with --on "
                 "kubernetes likewise the manifests")
      ->group(kSlurmGroup);
  command
      ->add_flag("--detach", run->detach,
                 "Submits the job, prints its id, and does not follow it")
      ->group(kSlurmGroup);
}

// Those that are not for the run in a batch script. What is asked of Slurm is:
// its config has that, so that whoever goes on with it asks for the same.
constexpr std::array kNotInBatch = {"--help",  "--on",     "--out",
                                    "--print", "--detach", "--dry-run"};

// The command as it was given, for a batch script.
std::vector<std::string> BatchCommand(const std::string& program,
                                      const CLI::App& command) {
  std::vector<std::string> words = {program, "run"};
  const auto add_option = [&](const CLI::Option& option) {
    const std::string name = absl::StrCat(
        "--", option.get_lnames().empty() ? "" : option.get_lnames().front());
    if (absl::c_linear_search(kNotInBatch, name)) return;
    if (option.get_expected_max() == 0) {
      // As in --timeline=5.
      const std::string& value = option.results().front();
      words.push_back(value == "true" ? name : absl::StrCat(name, "=", value));
      return;
    }
    for (const std::string& result : option.results()) {
      words.push_back(name);
      words.push_back(result);
    }
  };
  for (const CLI::Option* const option : command.get_options()) {
    if (option->get_positional() && option->count() > 0)
      words.insert(words.end(), option->results().begin(),
                   option->results().end());
  }
  words.insert(words.end(), {"--on", "slurm"});
  for (const CLI::Option* const option : command.get_options()) {
    if (!option->get_positional() && option->count() > 0) add_option(*option);
  }
  return words;
}

void AddPlacementFlags(CLI::App* command, RunOptions* run) {
  command->add_option(
      "--key", run->key.given,
      "The file with the key that the job gets its own from, which goes with "
      "it to all of its hosts; default: ~/.config/slackline/key, which is made "
      "if there is none (slackline keys --help)");
  command->add_option(
      "--on", run->overrides.engine,
      "Where processes are started: here, or on the hosts of the config by "
      "ssh, or by slurm: within an allocation on its nodes, outside of one by "
      "a batch script that is submitted and followed, or by ray: on nodes that "
      "a Ray cluster gives; or as a JobSet by kubernetes; default: as the "
      "config's launch block says, else here");
  CLI::Option* const hosts = command->add_option(
      "--hosts", run->hosts,
      "HOST:WORKERS,... places the config's processes on these hosts, whatever "
      "hosts it names: servers go round them, workers fill them, the "
      "coordinator is on the first");
  CLI::Option* const host_file = command->add_option(
      "--hostfile", run->host_file,
      "The same from a file with lines like: HOST slots=WORKERS");
  host_file->excludes(hosts);
  command->add_option(
      "--nodes", run->nodes,
      "How many nodes Slurm or Ray gives to the job; default: as many as the "
      "config names, else 1; as launch.slurm.nodes or launch.ray.nodes");
  // As of a variable that is not set.
  for (CLI::Option* const option : {hosts, host_file}) {
    option->check([](const std::string& value) {
      return value.empty() ? "it is empty; name hosts, or leave it out"
                           : std::string();
    });
  }
}

}  // namespace

void AddRunFlags(CLI::App* command, RunOptions* run) {
  command->add_option(
      "--mode", run->overrides.mode,
      absl::StrCat(kModeHelp, "; replaces the config's mode or phases"));
  command->add_option("--delays", run->overrides.delays, kDelaysHelp);
  command
      ->add_option("--set", run->overrides.sets,
                   "PATH=VALUE changes one field of the config, for example "
                   "worker[0].count=2; may be repeated")
      ->allow_extra_args(false);
  AddTrainFlags(command, &run->overrides.sets);
  AddPlacementFlags(command, run);
  command->add_option(
      "--data-dir", run->data_dir,
      "Folder below which the data are; default: ~/.cache/slackline/data, into "
      "which MNIST is downloaded (without a network: a generated stand-in)");
  command->add_option(
      "--out", run->out_dir,
      "New or empty folder for config, logs, metrics, model and summary; "
      "default: runs/JOB-MODE-TIME. If it has a run of this command already, "
      "that goes on from its last checkpoint, or has finished: so the same "
      "command is always the right one. With --resume also the folder of the "
      "run that wrote the checkpoint, whose records are then continued");
  command->add_flag(
      "--new-run", run->new_run,
      "Begins anew in a folder of --out that has a run: what that has left is "
      "moved into OUT/replaced-N, but for its logs");
  CLI::Option* const resume = command->add_option(
      "--resume", run->resume,
      "Goes on from a checkpoint: its folder, or the newest whole one of a "
      "run's "
      "folder or of a folder of checkpoints. CONFIG may have other numbers of "
      "servers, threads and workers, another mode and another length "
      "(docs/manual/checkpoints.md)");
  command
      ->add_flag("--best", run->best,
                 "Goes on from the best checkpoint there, not the newest: of a "
                 "job with checkpoint { best_by: ... }")
      ->needs(resume);
  command
      ->add_option(
          "--track", run->track,
          absl::StrCat("Sends the records of the run to an experiment "
                       "tracker as they come: ",
                       kTrackersHelp, "; default: those of the config's track"))
      ->check(TrackerProblem)
      ->allow_extra_args(false);
  command
      ->add_option("--restart-workers", run->restart_workers,
                   "How often each worker that dies is started again; "
                   "default: 0")
      ->check(CLI::Range(0, 1000));
  command
      ->add_option("--restart-servers", run->restart_servers,
                   "How often each server that dies while the job runs is "
                   "started again, the one with the coordinator included; "
                   "default: 3 if the config has replicas, else 0 "
                   "(docs/manual/replicas.md, docs/manual/coordinator.md)")
      ->check(CLI::Range(0, 1000));
  command->add_flag_callback(
      "--no-memory-check", [run] { run->check_memory = false; },
      "Starts the job also if it seems to need more memory "
      "than this machine has free");
  command->add_flag(
      "--dry-run", run->dry_run,
      "Checks config, programs, memory, a checkpoint to go on from, and data "
      "if --data-dir names them; prints the whole config, with all that was "
      "left out filled in; starts and writes nothing");
  command->add_flag_callback(
      "--no-progress", [run] { run->progress = false; },
      "Only say when something is wrong");
  // A flag of a number drops what is behind its point.
  const auto timeline = std::make_shared<std::string>();
  command
      ->add_flag("--timeline{10}", *timeline,
                 "Records what all processes do in the first 10 seconds of "
                 "steps, or with --timeline=SECONDS in so many, into a file "
                 "for https://ui.perfetto.dev in the folder of the run; later: "
                 "slackline trace (docs/manual/watching.md)")
      ->check(CLI::Range(absl::ToDoubleSeconds(kTimelineMin),
                         absl::ToDoubleSeconds(kTimelineMax)))
      ->each([run, timeline](const std::string& seconds) {
        (void)absl::SimpleAtod(seconds, &run->timeline_seconds);
      });
  command->add_option(
      "--bin-dir", run->bin_dir,
      "Folder of slackline_server and slackline_worker; default: that of "
      "slackline itself");
  AddSlurmFlags(command, run);
}

void AddRunCommands(const Invocation& invocation, CLI::App* app,
                    int* exit_code) {
  const auto asked = std::make_shared<RunOptions>();
  asked->key.own = invocation.user_key;
  RunOptions& run = *asked;
  run.bin_dir = invocation.bin_dir;
  run.overrides.worker_command = invocation.worker_command;
  CLI::App* const run_command = app->add_subcommand(
      "run",
      "Runs a whole job: starts its servers and workers, shows its progress, "
      "prints its results. On this machine, or with --on on others "
      "(docs/manual/clusters.md).\n"
      "Ctrl-C ends the job early, with its model; a second one stops it at "
      "once, without; a third kills it. SIGTERM stops it at once, too, unless "
      "the "
      "config has a checkpoint block: then the first one takes a checkpoint "
      "and "
      "ends the job, with exit code 75.\n"
      "A job whose config has replicas goes on when a server dies, with the "
      "copies of its shards, and the server is started again. One whose config "
      "has checkpoint { on_server_loss: RESTORE } begins again from its last "
      "checkpoint when servers are lost whose shards nobody has, or workers "
      "that it needs.\n"
      "What stands after -- is the program of all workers, with its arguments, "
      "in place of worker.command and of slackline_worker. It is started once "
      "for each worker, and finds its place in the environment variables "
      "SLACKLINE_CLUSTER, _INDEX, _OUT, _DATA_DIR and _KEY "
      "(docs/manual/own-models.md).");
  run_command
      ->add_option("CONFIG", run.config_path, "The cluster config, a text file")
      ->required();
  AddRunFlags(run_command, &run);
  run_command->footer(
      "Examples:\n"
      "  slackline run examples/mnist_mlp.textproto --mode ssp:3\n"
      "  slackline run examples/mnist_mlp.textproto --delays uniform:2\n"
      "  slackline run examples/mnist_mlp.textproto --epochs 1 --dry-run\n"
      "  slackline run examples/mnist_mlp.textproto --on ssh --hosts "
      "n1:2,n2:2\n"
      "  slackline run examples/mnist_mlp.textproto --on slurm --nodes 2 "
      "--time 30\n"
      "  slackline run examples/mnist_mlp.textproto --on ray --nodes 2\n"
      "  slackline run runs/a/cluster.textproto --resume runs/a\n"
      "  slackline run runs/a/cluster.textproto --resume runs/a --out runs/a\n"
      "  slackline run examples/cpp/own_model.textproto -- ./own_model");
  const std::string program = invocation.program;
  run_command->callback([=] {
    RunOptions options = *asked;
    for (const char* const name :
         {"--key", "--data-dir", "--restart-workers", "--restart-servers",
          "--no-memory-check", "--no-progress", "--bin-dir"}) {
      const CLI::Option* const option = run_command->get_option(name);
      if (option->count() == 0) continue;
      options.flags_again.push_back(name);
      if (option->get_expected_max() > 0)
        options.flags_again.push_back(option->results().back());
    }
    for (const std::string& to : options.track)
      options.flags_again.insert(options.flags_again.end(), {"--track", to});
    options.slurm = AllocationHere();
    options.batch_command = BatchCommand(program, *run_command);
    *exit_code = Run(options);
  });

  const auto summary = std::make_shared<SummaryOptions>();
  CLI::App* const summary_command = app->add_subcommand(
      "summary", "Prints the results of runs that have ended in one table.");
  summary_command
      ->add_option("DIR", summary->folders,
                   "Folders of runs, each with summary.json")
      ->required();
  summary_command->add_flag("--json", summary->json,
                            "A list of folders, each with its summary.json");
  summary_command->callback([=] { *exit_code = ShowSummaries(*summary); });
}

}  // namespace slackline
