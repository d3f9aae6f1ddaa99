// slackline: the user's tool. Reads the command line and calls the subcommand.
#include <fcntl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>

#include "common/process/exit_code.h"
#include "common/process/usage_error.h"
#include "common/process/user_key_file.h"
#include "common/version.h"
#include "tools/cli/agent/agent.h"
#include "tools/cli/command_line/checkpoint_flags.h"
#include "tools/cli/command_line/data_flags.h"
#include "tools/cli/command_line/doctor_flags.h"
#include "tools/cli/command_line/experiment_flags.h"
#include "tools/cli/command_line/job_flags.h"
#include "tools/cli/command_line/keys_flags.h"
#include "tools/cli/command_line/run_flags.h"
#include "tools/cli/help/help_flags.h"
#include "tools/cli/init/init_command.h"
#include "tools/cli/invocation.h"

namespace {

// The other binaries stand beside this one.
slackline::Invocation OwnInvocation(int argc, char** argv) {
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  slackline::Invocation invocation = {
      .program = error ? argv[0] : self.string(),
      .bin_dir = error ? "." : self.parent_path().string(),
      .arguments = {argv + std::min(argc, 1), argv + argc},
      .worker_command = {},
      .user_key = slackline::UserKeyFileHere()};
  const std::vector<std::string>& all = invocation.arguments;
  const auto dashes = std::find(all.begin(), all.end(), "--");
  if (dashes != all.end()) invocation.worker_command = {dashes + 1, all.end()};
  return invocation;
}

// Behind these a program for the workers may follow, after "--".
constexpr const char* kBeforePrograms[] = {"run", "doctor", "compare",
                                           "ablate"};

// What is wrong with a "--"; empty: nothing. What stands after it is not for
// the parser: it would take words there for flags and subcommands.
std::string DashesProblem(const slackline::Invocation& invocation) {
  const std::vector<std::string>& all = invocation.arguments;
  if (std::find(all.begin(), all.end(), "--") == all.end()) return "";
  if (std::find(std::begin(kBeforePrograms), std::end(kBeforePrograms),
                all.front()) == std::end(kBeforePrograms)) {
    return "a program for the workers after -- is for slackline run, doctor, "
           "compare and ablate";
  }
  if (!invocation.worker_command.empty()) return "";
  return "no program follows --; write one with its arguments, as in -- "
         "python3 "
         "train.py, or leave out --";
}

}  // namespace

int main(int argc, char** argv) {
  // Where one of the three is closed, a file of the program would take its
  // number, and what is printed would go there.
  for (int stream = 0; stream < 3; ++stream) {
    if (fcntl(stream, F_GETFD) < 0) open("/dev/null", O_RDWR);
  }
  CLI::App app(
      "Trains models with sharded parameter servers or all-reduce.\n"
      "Exit code: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C; status "
      "has more. "
      "Results go to stdout, the "
      "rest to stderr.");
  app.name("slackline");
  app.set_version_flag("--version", slackline::VersionText("slackline"));
  app.require_subcommand(1);
  int exit_code = slackline::kExitDone;

  const slackline::Invocation invocation = OwnInvocation(argc, argv);
  if (const std::string problem = DashesProblem(invocation); !problem.empty()) {
    std::fprintf(stderr, "slackline: %s\n", problem.c_str());
    return slackline::kExitUsage;
  }
  slackline::AddInitCommand(&app, &exit_code);
  slackline::AddRunCommands(invocation, &app, &exit_code);
  slackline::AddDoctorCommand(invocation, &app, &exit_code);
  slackline::AddJobCommands(invocation, &app, &exit_code);
  slackline::AddExperimentCommands(invocation, &app, &exit_code);
  slackline::AddCheckpointCommands(&app, &exit_code);
  slackline::AddKeysCommands(invocation, &app, &exit_code);
  slackline::AddDataCommands(&app, &exit_code);
  slackline::AddHelpCommands(&app, &exit_code);
  // Not for people, so no help names it.
  app.add_subcommand("agent",
                     "Starts the processes of a job on this host for "
                     "a slackline run on another one.")
      ->group("")
      ->callback([&] { exit_code = slackline::RunAgent(invocation.user_key); });
  // After them: a command begins with the footer that is there then.
  app.footer(
      "Examples:\n"
      "  slackline run examples/mnist_mlp.textproto --mode ssp:3\n"
      "  slackline ablate examples/mnist_mlp.textproto --over "
      "sync.ssp.staleness=0,3,inf");

  try {
    const auto end = std::find(argv, argv + argc, std::string("--"));
    app.parse(static_cast<int>(end - argv), argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version also come this way.
    return slackline::ExitOnParseError(
        app, error, invocation.arguments,
        {std::begin(kBeforePrograms), std::end(kBeforePrograms)});
  }
  return exit_code;
}
