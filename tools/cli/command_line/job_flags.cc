#include "tools/cli/command_line/job_flags.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/cli/job/checkpoint_command.h"
#include "tools/cli/job/mode_commands.h"
#include "tools/cli/job/rebalance_commands.h"
#include "tools/cli/job/servers_command.h"
#include "tools/cli/job/stacks.h"
#include "tools/cli/job/status_command.h"
#include "tools/cli/job/stop_command.h"
#include "tools/cli/job/timeline_collection.h"
#include "tools/cli/job/top_command.h"
#include "tools/cli/job/trace_command.h"
#include "tools/cli/page/open_command.h"

namespace slackline {
namespace {

void AddOutputFlags(CLI::App* command, const char* wait_help,
                    MoveOutputOptions* options) {
  command->add_flag("--wait,!--no-wait", options->wait, wait_help);
  command->add_flag("--json", options->json,
                    "Plan and moves as JSON instead of tables");
}

void AddStatusCommand(const Invocation& invocation, CLI::App* app,
                      int* exit_code) {
  const auto status = std::make_shared<StatusOptions>();
  CLI::App* const status_command =
      app->add_subcommand("status",
                          "Shows how a running job stands, member by member; "
                          "of the folder of a run "
                          "that has ended: how, with its results.");
  AddJobFlags(invocation, status_command, &status->job);
  AddTableFlags(status_command, &status->table);
  status_command->add_flag("--json", status->json,
                           "Everything the coordinator knows, as JSON; of a "
                           "run that has ended: its summary.json");
  status_command->get_option("--json")->excludes(
      status_command->get_option("--shards"));
  status_command
      ->add_option_function<std::vector<std::string>>(
          "--stacks",
          [status](const std::vector<std::string>& names) {
            status->stacks = true;
            for (const std::string& name : names) {
              // "--stacks" alone.
              if (name.empty()) continue;
              const absl::StatusOr<wire::MemberName> parsed =
                  ParseMemberName(name);
              if (!parsed.ok()) {
                throw CLI::ValidationError(
                    "--stacks", std::string(parsed.status().message()));
              }
              status->stacks_of.push_back(*parsed);
            }
          },
          "Instead shows where each process is, or these, as worker-2 or "
          "server-0: its threads, and of scripts each line in Python, with the "
          "processes of their DataLoaders. As they come, for 5 s at most. To "
          "be given after the job")
      ->type_name("NAME ...")
      ->expected(0, -1)
      ->excludes(status_command->get_option("--shards"));
  status_command->footer(
      "Exit code: 0 the job runs, 3 it has not begun yet, 4 it has finished, 5 "
      "it has failed or\nwas stopped, 75 it was suspended and can go on, 6 "
      "nobody who knows is reached, 1 another\nfailure, 2 wrong usage.");
  status_command->callback([=] { *exit_code = ShowStatus(*status); });
}

void AddTopCommand(const Invocation& invocation, CLI::App* app,
                   int* exit_code) {
  const auto top = std::make_shared<TopOptions>();
  CLI::App* const top_command = app->add_subcommand(
      "top",
      "Shows the status of a running job again and again, until the job ends "
      "or Ctrl-C.");
  AddJobFlags(invocation, top_command, &top->job);
  AddTableFlags(top_command, &top->table);
  top_command
      ->add_option_function<int>(
          "--interval-ms",
          [top](int ms) { top->interval = absl::Milliseconds(ms); },
          "Time between two; default: 1000")
      ->check(CLI::Range(50, 3600000));
  top_command
      ->add_option("--count", top->count,
                   "Ends after so many; default: no such end")
      ->check(CLI::Range(1, 1000000000));
  top_command->add_flag("--json", top->json,
                        "As status --json does, each in one line");
  top_command->get_option("--json")->excludes(
      top_command->get_option("--shards"));
  top_command->callback([=] { *exit_code = ShowTop(*top); });
}

void AddTraceCommand(const Invocation& invocation, CLI::App* app,
                     int* exit_code) {
  const auto trace = std::make_shared<TraceOptions>();
  CLI::App* const trace_command = app->add_subcommand(
      "trace",
      "Records what all workers, servers and the coordinator of a running job "
      "do in the next seconds, and writes it into one file for "
      "https://ui.perfetto.dev: phases of steps, messages from their sending "
      "to their answer, and what the coordinator does "
      "(docs/manual/watching.md).");
  AddJobFlags(invocation, trace_command, &trace->job);
  AddTimelineSeconds(trace_command, "--seconds", &trace->time,
                     "How long; default: 10");
  trace_command->add_option(
      "--out", trace->out,
      "New file; default: timeline-TIME.pftrace in the folder of the run, or "
      "here");
  trace_command
      ->add_option("--profile", trace->profiles,
                   "RANK=FILE: what torch.profiler has written of this worker "
                   "(export_chrome_trace) by the end of the recording is added "
                   "to it; may be repeated")
      ->allow_extra_args(false);
  trace_command->footer(
      "Ctrl-C ends it early, with what has come by then. slackline run "
      "--timeline records from the first step on.\n"
      "This has nothing to do with train { trace }, which records which "
      "versions of parameters gradients were of.\n"
      "Examples:\n"
      "  slackline trace runs/digits --seconds 5\n"
      "  slackline trace runs/digits --profile 0=worker-0.json");
  trace_command->callback([=] { *exit_code = TraceJob(*trace); });
}

void AddOpenCommand(const Invocation& invocation, CLI::App* app,
                    int* exit_code) {
  const auto open = std::make_shared<OpenOptions>();
  CLI::App* const open_command = app->add_subcommand(
      "open",
      "Shows a running job on a page in the browser: members, who holds whom "
      "up, curves, load, what has happened, and buttons for orders. Prints the "
      "address, and serves the page until Ctrl-C.");
  AddJobFlags(invocation, open_command, &open->job);
  open_command->add_option(
      "--host", open->page.host,
      "Address of this machine at which the page is; default: 127.0.0.1, which "
      "only this machine reaches. There is no encryption");
  open_command
      ->add_option("--port", open->page.port,
                   "Its port; default: 0, any free one")
      ->check(CLI::Range(0, 65535));
  open_command->footer(
      "Who has the address can give orders with the key that slackline open "
      "holds. With --key FILE and what a\nreader holds of it (slackline keys "
      "export --role reader) the page only shows.");
  open_command->callback([=] { *exit_code = OpenPage(*open); });
}

void AddCheckpointCommand(const Invocation& invocation, CLI::App* app,
                          int* exit_code) {
  const auto checkpoint = std::make_shared<CheckpointOptions>();
  CLI::App* const checkpoint_command = app->add_subcommand(
      "checkpoint",
      "Has a running job take a checkpoint while it goes on, and waits until "
      "it "
      "is on the disk: `slackline run --resume` goes on from it "
      "(docs/manual/checkpoints.md).");
  AddJobFlags(invocation, checkpoint_command, &checkpoint->job);
  checkpoint_command
      ->add_option_function<int64_t>(
          "--deadline-ms",
          [checkpoint](int64_t ms) {
            checkpoint->deadline = absl::Milliseconds(ms);
          },
          "How long to wait until it is there; default: 600000. It is taken "
          "all "
          "the same")
      ->check(CLI::Range(1, 86400000));
  checkpoint_command->add_flag("--json", checkpoint->json,
                               "What the coordinator says and the checkpoint, "
                               "as JSON");
  checkpoint_command->footer(
      "Examples:\n"
      "  slackline checkpoint runs/digits\n"
      "  slackline run runs/digits/cluster.textproto --resume runs/digits "
      "--out runs/more");
  checkpoint_command->callback(
      [=] { *exit_code = CheckpointJob(*checkpoint); });
}

void AddStopCommand(const Invocation& invocation, CLI::App* app,
                    int* exit_code) {
  const auto stop = std::make_shared<StopOptions>();
  CLI::App* const stop_command = app->add_subcommand(
      "stop",
      "Ends a running job early, as at its last step: all workers complete the "
      "same number of steps, and the model is evaluated and kept. Waits for "
      "it.");
  AddJobFlags(invocation, stop_command, &stop->job);
  stop_command->add_option("--reason", stop->reason,
                           "What logs and status say about it; default: "
                           "stopped by the user");
  using How = StopOptions::How;
  const auto at_once = std::make_shared<bool>(false);
  const auto suspended = std::make_shared<bool>(false);
  CLI::Option* const now = stop_command->add_flag(
      "--now", *at_once,
      "At once: no model is kept, and the job counts as failed");
  stop_command
      ->add_flag("--checkpoint", *suspended,
                 "After a checkpoint, from which `slackline run --resume` goes "
                 "on; says where it is. The job's processes end with exit code "
                 "75")
      ->excludes(now);
  stop_command
      ->add_flag("!--no-wait", stop->wait, "Only order it, do not wait for it")
      ->excludes(now);
  stop_command->add_flag("--json", stop->json,
                         "What the coordinator says and how it has ended, as "
                         "JSON");
  stop_command->callback([=] {
    if (*at_once) stop->how = How::kAtOnce;
    if (*suspended) stop->how = How::kSuspended;
    *exit_code = StopJob(*stop);
  });
}

void AddRebalanceCommands(const Invocation& invocation, CLI::App* app,
                          int* exit_code) {
  const auto rebalance = std::make_shared<RebalanceOptions>();
  CLI::App* const rebalance_command = app->add_subcommand(
      "rebalance",
      "Moves shards of a running job from busy servers to idle ones: shows the "
      "plan and its reasons, waits until it is done, shows what it has cost.");
  AddJobFlags(invocation, rebalance_command, &rebalance->job);
  CLI::Option* const dry_run = rebalance_command->add_flag(
      "--dry-run", rebalance->dry_run, "Only show the plan, move nothing");
  AddOutputFlags(rebalance_command,
                 "Until the moves are done, the default; with --no-wait only "
                 "until they are ordered",
                 &rebalance->output);
  rebalance_command->get_option("--wait")->excludes(dry_run);
  rebalance_command->callback(
      [=] { *exit_code = RebalanceShards(*rebalance); });

  const auto move = std::make_shared<MoveOptions>();
  CLI::App* const move_command = app->add_subcommand(
      "move", "Moves given shards of a running job to a server.");
  AddJobFlags(invocation, move_command, &move->job);
  move_command
      ->add_option("SHARD", move->shards,
                   "Shard ids (3), ranges of them (3-7), tables (all their "
                   "shards) or shards as `slackline status --shards` shows "
                   "them ('mlp.0.weight[0, 65536)')")
      ->required();
  move_command
      ->add_option("--to", move->to,
                   "SERVER or SERVER.THREAD; without a thread the one with the "
                   "least load")
      ->required();
  AddOutputFlags(move_command,
                 "Until the moves are done, the default; with --no-wait only "
                 "until they are ordered",
                 &move->output);
  move_command->callback([=] { *exit_code = MoveShards(*move); });

  const auto drain = std::make_shared<DrainOptions>();
  CLI::App* const drain_command = app->add_subcommand(
      "drain",
      "Moves all shards of a server away; the server then leaves the job. Not "
      "for the server that hosts the coordinator.");
  AddJobFlags(invocation, drain_command, &drain->job);
  drain_command->add_option("SERVER", drain->server, "Its index")
      ->required()
      ->check(CLI::Range(0, 1000000));
  AddOutputFlags(drain_command,
                 "Until the server has left, the default; with --no-wait only "
                 "until the moves are ordered",
                 &drain->output);
  drain_command->callback([=] { *exit_code = DrainServer(*drain); });

  CLI::App* const servers_command =
      app->add_subcommand("servers", "Changes the servers of a running job.");
  servers_command->require_subcommand(1);
  const auto add = std::make_shared<AddServerOptions>();
  add->bin_dir = invocation.bin_dir;
  CLI::App* const add_command = servers_command->add_subcommand(
      "add",
      "Starts one more server on this machine, in the background, and waits "
      "until it is in the job. It ends with the job.");
  AddJobFlags(invocation, add_command, &add->job);
  add_command->add_option(
      "--host", add->host,
      "Address of this machine to which workers connect; default: that of the "
      "config's last server");
  add_command
      ->add_option("--threads", add->threads,
                   "Shard threads; default: as the config's last server")
      ->check(CLI::Range(1, 256));
  add_command->add_option(
      "--log", add->log,
      "New file for its output; default: server-INDEX.log in the folder logs "
      "of the run, or here");
  add_command->add_option("--bin-dir", add->bin_dir,
                          "Folder of slackline_server; default: that of "
                          "slackline itself");
  add_command->add_flag("--json", add->json,
                        "Its index, process id and log as JSON");
  add_command->callback([=] { *exit_code = AddServer(*add); });
}

void AddModeCommands(const Invocation& invocation, CLI::App* app,
                     int* exit_code) {
  CLI::App* const mode_command = app->add_subcommand(
      "mode", "Shows or changes how a running job synchronises.");
  mode_command->require_subcommand(1);

  const auto show = std::make_shared<ShowModesOptions>();
  CLI::App* const show_command = mode_command->add_subcommand(
      "show",
      "Shows the mode, the phases before and after it, what the policy sees, "
      "and what the last changes have cost.");
  AddJobFlags(invocation, show_command, &show->job);
  show_command->add_flag("--json", show->json, "The same as JSON");
  show_command->callback([=] { *exit_code = ShowModes(*show); });

  const auto set = std::make_shared<ChangeModeOptions>();
  CLI::App* const set_command = mode_command->add_subcommand(
      "set",
      "Changes the mode, without a restart: waits until all workers train in "
      "the new one, shows since when and how long they stood still.");
  AddJobFlags(invocation, set_command, &set->job);
  set_command->add_option("MODE", set->mode, kModeHelp)->required();
  set_command->add_flag("--wait,!--no-wait", set->wait,
                        "Until the mode has changed, the default; with "
                        "--no-wait only until that is ordered");
  set_command->add_flag("--json", set->json,
                        "What the coordinator says and, once it is done, the "
                        "change, as JSON");
  set_command->callback([=] { *exit_code = ChangeMode(*set); });
}

}  // namespace

void AddTrainFlags(CLI::App* command, std::vector<std::string>* sets) {
  for (const char* const name : {"seed", "epochs"}) {
    command->add_option_function<std::string>(
        absl::StrCat("--", name),
        [sets, name](const std::string& value) {
          sets->push_back(absl::StrCat("train.", name, "=", value));
        },
        absl::StrCat("Same as --set train.", name, "=",
                     absl::AsciiStrToUpper(name)));
  }
}

void AddJobFlags(const Invocation& invocation, CLI::App* command,
                 JobOptions* options) {
  options->key.own = invocation.user_key;
  command
      ->add_option("CONFIG", options->config,
                   "The cluster config, or the folder of a run")
      ->required();
  command->add_option(
      "--key", options->key.given,
      "The file with the job's key, or with what an operator or a reader holds "
      "of it; default: that in the folder of the run, else "
      "~/.config/slackline/key");
  command
      ->add_option_function<int64_t>(
          "--timeout-ms",
          [options](int64_t ms) { options->wait_max = absl::Milliseconds(ms); },
          "How long to wait for an answer of the coordinator; default: 3000")
      ->check(CLI::Range(1, 600000));
}

CLI::Option* AddTimelineSeconds(CLI::App* command, const std::string& name,
                                absl::Duration* time, const std::string& help) {
  return command
      ->add_option_function<double>(
          name, [time](double seconds) { *time = absl::Seconds(seconds); },
          help)
      ->check(CLI::Range(absl::ToDoubleSeconds(kTimelineMin),
                         absl::ToDoubleSeconds(kTimelineMax)));
}

void AddTableFlags(CLI::App* command, StatusTableOptions* options) {
  CLI::Option* const shards =
      command->add_flag("--shards", options->shards, "Also the busiest shards");
  command
      ->add_option("--top", options->top,
                   "How many shards, and how many moves; default: 20")
      ->check(CLI::Range(1, 1000000))
      ->needs(shards);
}

void AddJobCommands(const Invocation& invocation, CLI::App* app,
                    int* exit_code) {
  AddStatusCommand(invocation, app, exit_code);
  AddTopCommand(invocation, app, exit_code);
  AddTraceCommand(invocation, app, exit_code);
  AddOpenCommand(invocation, app, exit_code);
  AddCheckpointCommand(invocation, app, exit_code);
  AddStopCommand(invocation, app, exit_code);
  AddModeCommands(invocation, app, exit_code);
  AddRebalanceCommands(invocation, app, exit_code);
}

}  // namespace slackline
