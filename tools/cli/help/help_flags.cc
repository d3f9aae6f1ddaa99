#include "tools/cli/help/help_flags.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "common/version.h"
#include "tools/cli/command_output.h"
#include "tools/cli/help/command_tree.h"

namespace slackline {

void AddHelpCommands(CLI::App* app, int* exit_code) {
  CLI::App* const completion = app->add_subcommand(
      "completion",
      "Prints a script by which a shell completes commands and flags. For "
      "bash: "
      "slackline completion bash > "
      "~/.local/share/bash-completion/completions/slackline");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->callback([=] {
    PrintResult(CompletionScript(CommandsOf(*app), *shell));
    *exit_code = kExitDone;
  });
  CLI::App* const manual = app->add_subcommand(
      "manual", "Prints the page for man: slackline manual | man -l -");
  manual->callback([=] {
    PrintResult(ManualPage(CommandsOf(*app),
                           absl::StrCat("slackline ", VersionNumber())));
    *exit_code = kExitDone;
  });
}

}  // namespace slackline
