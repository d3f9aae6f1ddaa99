// The commands of a program with their flags, as its parser has them: what help
// texts in other forms are made of.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace slackline {

struct CommandFlag {
  std::string name;   // "--mode".
  std::string value;  // "TEXT", "INT"; empty: it takes none.
  std::string help;
};

struct Command {
  std::string name;  // "slackline mode set".
  std::string help;
  std::vector<CommandFlag> arguments = {};  // Without dashes, in their order.
  std::vector<CommandFlag> flags = {};
  std::vector<Command> commands = {};
};

// Without those that no help names.
Command CommandsOf(const CLI::App& app);

// Scripts for the shells that complete commands and flags, and file names for
// values. `shell`: bash, zsh or fish; else it is empty.
std::string CompletionScript(const Command& program, const std::string& shell);

// A page in the form of man(7), of all commands. `version`: of its foot.
std::string ManualPage(const Command& program, const std::string& version);

}  // namespace slackline
