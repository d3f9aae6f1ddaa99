#include "tools/cli/command_line/data_flags.h"

#include <memory>
#include <string>

#include "tools/cli/data/data_command.h"

namespace slackline {
namespace {

constexpr char kJsonHelp[] = "Where the data are, as JSON";

struct DataFlags {
  std::string data_set;
  DataOptions fetch;
  DataOptions stand_in;
};

}  // namespace

void AddDataCommands(CLI::App* app, int* exit_code) {
  CLI::App* const data_command =
      app->add_subcommand("data", "Gets training data.");
  data_command->require_subcommand(1);
  const auto flags = std::make_shared<DataFlags>();
  CLI::App* const fetch_command = data_command->add_subcommand(
      "fetch",
      "Downloads a public data set and checks it. Overwrites nothing.");
  fetch_command
      ->add_option("NAME", flags->data_set,
                   "mnist; for a9a it says how to get it by hand")
      ->required();
  fetch_command->add_option("--data-dir", flags->fetch.data_dir,
                            "Goes into the folder NAME in this one; default: "
                            "~/.cache/slackline/data");
  fetch_command->add_flag("--json", flags->fetch.json, kJsonHelp);
  fetch_command->callback(
      [=] { *exit_code = FetchDataSet(flags->data_set, flags->fetch); });
  CLI::App* const stand_in_command = data_command->add_subcommand(
      "stand-in",
      "Generates pictures in the files and sizes of MNIST, for machines "
      "without a network. They are not MNIST.");
  stand_in_command
      ->add_option("--data-dir", flags->stand_in.data_dir,
                   "Goes into the folder mnist in this one")
      ->required();
  stand_in_command->add_flag("--json", flags->stand_in.json, kJsonHelp);
  stand_in_command->callback(
      [=] { *exit_code = WriteStandIn(flags->stand_in); });
}

}  // namespace slackline
