// What a program answers to a command line that it does not understand.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace slackline {

// Prints what was asked for (--help, --version), or what is wrong. Returns the
// exit code: 0 or 2. `arguments` are those that were parsed, without the
// program's name.
int ExitOnParseError(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& arguments);

// "slackline run: there is no flag --epoch; did you mean --epochs?": names the
// first word that is not understood, with the flag, the subcommand or, where
// there is --set, the field of the config that is nearest; else what CLI11
// says. Without a line end.
std::string UsageErrorText(const CLI::App& app, const CLI::ParseError& error,
                           const std::vector<std::string>& arguments);

}  // namespace slackline
