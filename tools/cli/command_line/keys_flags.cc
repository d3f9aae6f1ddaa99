#include "tools/cli/command_line/keys_flags.h"

#include <memory>
#include <string>

#include "common/process/exit_code.h"
#include "tools/cli/command_output.h"
#include "tools/cli/keys/keys_command.h"

namespace slackline {

void AddKeysCommands(const Invocation& invocation, CLI::App* app,
                     int* exit_code) {
  CLI::App* const keys = app->add_subcommand(
      "keys",
      "Makes and exchanges the key that protects your jobs, and makes parts of "
      "it for others.");
  keys->require_subcommand(1);
  keys->footer(
      "A job of one machine, and what `slackline run` starts on others, needs "
      "none of this: the key is\nmade when it is needed, in "
      "~/.config/slackline/key. docs/manual/security.md");

  const auto init = std::make_shared<InitKeyOptions>();
  init->key.own = invocation.user_key;
  CLI::App* const init_command = keys->add_subcommand(
      "init",
      "Makes your key, once. Of it each of your jobs has its own. Processes "
      "that you start by hand on several machines need the same file on each.");
  init_command->add_option("--key", init->key.given,
                           "The file; default: ~/.config/slackline/key");
  init_command->add_flag("--force", init->force,
                         "In place of one that is there. Jobs that run go on "
                         "with the old one, which you then no longer have: see "
                         "`rotate`");
  init_command->callback([=] {
    const absl::StatusOr<std::string> said = InitKey(*init);
    if (said.ok()) PrintResult(*said);
    *exit_code = said.ok() ? kExitDone : Fail("keys init", said.status());
  });

  const auto rotate = std::make_shared<RotateKeyOptions>();
  rotate->key.own = invocation.user_key;
  CLI::App* const rotate_command = keys->add_subcommand(
      "rotate",
      "Exchanges your key for a new one at a time that all your jobs know, so "
      "that they go on running. From then on the old one opens nothing.");
  rotate_command->add_option("--key", rotate->key.given,
                             "The file that your jobs were started with; "
                             "default: ~/.config/slackline/key");
  rotate_command
      ->add_option("--in", rotate->in,
                   "When: as long as it takes until each machine has the file, "
                   "and a few seconds more, since clocks differ")
      ->default_str(rotate->in);
  rotate_command->footer("docs/manual/security.md");
  rotate_command->callback([=] {
    const absl::StatusOr<std::string> said = RotateKey(*rotate);
    if (said.ok()) PrintResult(*said);
    *exit_code = said.ok() ? kExitDone : Fail("keys rotate", said.status());
  });

  const auto part = std::make_shared<ExportKeyOptions>();
  part->key.own = invocation.user_key;
  CLI::App* const export_command = keys->add_subcommand(
      "export",
      "Writes what one role of a job holds of its key, for a process or a "
      "person that is not to have all of it.");
  export_command
      ->add_option("CONFIG", part->config,
                   "The cluster config, or the folder of a run")
      ->required();
  export_command
      ->add_option("--role", part->role,
                   "worker: trains; operator: looks, and orders what users "
                   "may; reader: looks; all: the key of the job, which its "
                   "servers need")
      ->required();
  export_command->add_option(
      "--index", part->index,
      "With --role worker: the key is that of the worker of this rank alone, "
      "and says nothing as another one; default: of any worker");
  export_command->add_option("--out", part->out,
                             "A new file, which only you can read; default: "
                             "to stdout");
  export_command->add_flag("--force", part->force,
                           "With --out: in place of a file that is there, as "
                           "after `rotate`");
  export_command->add_option("--key", part->key.given,
                             "The file with the job's or your key; default: "
                             "that in the folder of the run, else "
                             "~/.config/slackline/key");
  export_command->footer(
      "Example:\n"
      "  slackline keys export examples/mnist_mlp.textproto --role reader "
      "--out reader.key\n"
      "  slackline status examples/mnist_mlp.textproto --key reader.key");
  export_command->callback([=] {
    const absl::StatusOr<std::string> said = ExportKey(*part);
    if (said.ok()) PrintResult(*said);
    *exit_code = said.ok() ? kExitDone : Fail("keys export", said.status());
  });
}

}  // namespace slackline
