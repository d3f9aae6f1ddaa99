#include "tools/cli/command_line/doctor_flags.h"

#include <array>
#include <memory>

#include "absl/algorithm/container.h"
#include "tools/cli/command_line/run_flags.h"
#include "tools/cli/run/doctor.h"

namespace slackline {

void AddDoctorCommand(const Invocation& invocation, CLI::App* app,
                      int* exit_code) {
  const auto asked = std::make_shared<DoctorOptions>();
  RunOptions& run = asked->run;
  run.bin_dir = invocation.bin_dir;
  run.key.own = invocation.user_key;
  run.overrides.worker_command = invocation.worker_command;
  CLI::App* const command = app->add_subcommand(
      "doctor",
      "Looks whether the hosts of a job are fit for it, before it is started: "
      "names and addresses, ports, the network between each two of them, "
      "clocks, limits, memory, folders, versions and data "
      "(docs/manual/doctor.md). Each problem is a line, with the host and what "
      "mends it. Takes the command line of the slackline run that is to "
      "follow.\n"
      "Exit code: 1 if the job would fail, else 0.");
  command
      ->add_option("CONFIG", run.config_path,
                   "The cluster config, a text file, or the folder of a run")
      ->required();
  AddRunFlags(command, &run);
  // Flags that say nothing about hosts are taken, as part of a command line,
  // and not shown.
  constexpr std::array kShown = {
      "--help",  "--mode",     "--set", "--on",      "--hosts", "--hostfile",
      "--nodes", "--data-dir", "--out", "--bin-dir", "--key"};
  for (CLI::Option* const option : command->get_options()) {
    if (option->get_positional() ||
        absl::c_any_of(kShown, [&](const char* const shown) {
          return option->check_name(shown);
        })) {
      continue;
    }
    option->group("");
  }
  command->add_flag("--verbose", asked->all, "Also what is fine");
  command->add_flag(
      "--json", asked->json,
      "The report as JSON, with what is fine (docs/manual/commands.md)");
  command->footer(
      "Examples:\n"
      "  slackline doctor examples/mnist_mlp.textproto\n"
      "  slackline doctor examples/mnist_mlp.textproto --on ssh --hosts "
      "n1:2,n2:2");
  command->callback([=] { *exit_code = ExamineJob(*asked); });
}

}  // namespace slackline
