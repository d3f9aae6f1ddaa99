// The flags of the subcommands for experiments.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace slackline {

// This program, as the user has called it.
struct Invocation {
  std::string program;                 // Path of its file.
  std::string bin_dir;                 // The folder of it and the others.
  std::vector<std::string> arguments;  // Without the program's name.
};

// compare, ablate, replay and report. When one of them has run, its exit code
// is in `*exit_code`.
void AddExperimentCommands(const Invocation& invocation, CLI::App* app,
                           int* exit_code);

}  // namespace slackline
