// What a program answers to a command line that it does not understand.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace slackline {

// Prints what was asked for (--help, --version), or what is wrong. Returns the
// exit code: 0 or 2. `arguments` are those that were parsed, without the
// program's name; `before_programs` as of UsageErrorText().
int ExitOnParseError(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& arguments,
                     const std::vector<std::string>& before_programs = {});

// "slackline run: there is no flag --epoch; did you mean --epochs?": names the
// first word that is not understood, with the flag, the subcommand or, where
// there is --set, the field of the config that is nearest; else what CLI11
// says. Without a line end.
// A word too many is the value of the flag before it, if that takes one only
// behind "="; or it begins a program for the workers before which "--" is
// missing, if the subcommand is one of `before_programs`.
std::string UsageErrorText(
    const CLI::App& app, const CLI::ParseError& error,
    const std::vector<std::string>& arguments,
    const std::vector<std::string>& before_programs = {});

}  // namespace slackline
