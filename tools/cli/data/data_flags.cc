#include "tools/cli/data/data_flags.h"

#include <memory>
#include <string>

#include "tools/cli/data/data_command.h"

namespace slackline {
namespace {

struct DataFlags {
  std::string data_set;
  std::string fetch_dir;
  std::string stand_in_dir;
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
  fetch_command->add_option("--data-dir", flags->fetch_dir,
                            "Goes into the folder NAME in this one; default: "
                            "~/.cache/slackline/data");
  fetch_command->callback(
      [=] { *exit_code = FetchDataSet(flags->data_set, flags->fetch_dir); });
  CLI::App* const stand_in_command = data_command->add_subcommand(
      "stand-in",
      "Generates pictures in the files and sizes of MNIST, for machines "
      "without a network. They are not MNIST.");
  stand_in_command
      ->add_option("--data-dir", flags->stand_in_dir,
                   "Goes into the folder mnist in this one")
      ->required();
  stand_in_command->callback(
      [=] { *exit_code = WriteStandIn(flags->stand_in_dir); });
}

}  // namespace slackline
