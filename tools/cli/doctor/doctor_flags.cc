#include "tools/cli/doctor/doctor_flags.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "tools/cli/doctor/doctor.h"
#include "tools/cli/job/job_flags.h"
#include "tools/cli/run/run_flags.h"

namespace slackline {

void AddDoctorCommand(const Invocation& invocation, CLI::App* app,
                      int* exit_code) {
  const auto asked = std::make_shared<DoctorOptions>();
  RunOptions& run = asked->run;
  run.bin_dir = invocation.bin_dir;
  run.overrides.worker_command = invocation.worker_command;
  CLI::App* const command = app->add_subcommand(
      "doctor",
      "Looks whether the hosts of a job are fit for it, before it is started: "
      "names and addresses, ports, the network between each two of them, "
      "clocks, limits, memory, folders, versions and data (docs/doctor.md). "
      "Each problem is a line, with the host and what mends it. Takes those "
      "flags of slackline run that say what runs where.\n"
      "Exit code: 1 if the job would fail, else 0.");
  command
      ->add_option("CONFIG", run.config_path,
                   "The cluster config, a text file, or the folder of a run")
      ->required();
  command->add_option("--mode", run.overrides.mode, "As for slackline run");
  command
      ->add_option("--set", run.overrides.sets,
                   "PATH=VALUE changes one field of the config; may be "
                   "repeated")
      ->allow_extra_args(false);
  AddPlacementFlags(command, &run);
  command->add_option("--data-dir", run.data_dir,
                      "Folder below which the data are; default: "
                      "~/.cache/slackline/data");
  command->add_option("--out", run.out_dir,
                      "The folder that the run will have; it is not made");
  command->add_option(
      "--bin-dir", run.bin_dir,
      "Folder of slackline_server and slackline_worker; default: that of "
      "slackline itself");
  command->add_flag("--verbose", asked->all, "Also what is fine");
  command->add_flag("--json", asked->json,
                    "The report as JSON, with what is fine (docs/commands.md)");
  command->footer(
      "Examples:\n"
      "  slackline doctor examples/mnist_mlp.textproto\n"
      "  slackline doctor examples/mnist_mlp.textproto --on ssh --hosts "
      "n1:2,n2:2 --set insecure=true");
  command->callback([=] { *exit_code = ExamineJob(*asked); });
}

}  // namespace slackline
