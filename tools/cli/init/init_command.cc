#include "tools/cli/init/init_command.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/placement.h"
#include "common/config/shell_line.h"
#include "common/io/atomic_file.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/cli/command_output.h"
#include "tools/cli/init/first_config.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr char kDefaultFile[] = "job.textproto";
constexpr char kDefaultProgram[] = "python3 train.py";

struct InitFlags {
  std::string file = kDefaultFile;
  std::string hosts;
  FirstJob job;
};

// The answer, or the default for an empty line. nullopt: the input has ended.
std::optional<std::string> Ask(const std::string& question,
                               const std::string& otherwise) {
  std::cerr << question;
  if (!otherwise.empty()) std::cerr << " [" << otherwise << "]";
  std::cerr << ": " << std::flush;
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  const std::string answer(absl::StripAsciiWhitespace(line));
  return answer.empty() ? otherwise : answer;
}

// Cancelled: the input has ended.
absl::Status AskAll(InitFlags* flags) {
  const absl::Status ended = absl::CancelledError("nothing was written");
  const auto what = Ask(
      "What do you train? 1: a program of yours (a PyTorch script, for one); "
      "2: the built-in net on MNIST, to try things out",
      "1");
  if (!what.has_value()) return ended;
  if (*what != "1" && *what != "2") {
    return absl::InvalidArgumentError(
        absl::StrCat("'", *what, "': 1 or 2 is required"));
  }
  if (*what == "1") {
    const auto program = Ask("Its command", kDefaultProgram);
    if (!program.has_value()) return ended;
    flags->job.program = *program;
  }
  const auto engine =
      Ask("Where? here: on this machine; ssh; slurm; ray", flags->job.engine);
  if (!engine.has_value()) return ended;
  flags->job.engine = *engine;
  if (*engine == "ssh") {
    const auto hosts = Ask("Hosts and workers on each, as n1:4,n2:4", "");
    if (!hosts.has_value()) return ended;
    flags->hosts = *hosts;
  } else {
    const auto workers = Ask("Workers", absl::StrCat(flags->job.workers));
    if (!workers.has_value()) return ended;
    if (!absl::SimpleAtoi(*workers, &flags->job.workers)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", *workers, "': a number of workers is required"));
    }
  }
  const auto folder = Ask("Folder for checkpoints, or none", "none");
  if (!folder.has_value()) return ended;
  if (*folder != "none") flags->job.checkpoints = *folder;
  return absl::OkStatus();
}

// What a newcomer would stumble over in the next command; empty: nothing.
std::string ProgramWarning(const std::string& program) {
  if (program.empty()) return "";
  const std::vector<std::string> words =
      absl::StrSplit(program, ' ', absl::SkipEmpty());
  if (const auto found = FindProgram(words.front()); !found.ok()) {
    return absl::StrCat("note: ", found.status().message());
  }
  std::error_code ignored;
  for (const std::string& word : words) {
    if (fs::path(word).extension() == ".py" && !fs::exists(word, ignored))
      return absl::StrCat("note: there is no file ", word, " here yet");
  }
  return "";
}

absl::Status Init(InitFlags flags, bool any_flag) {
  std::error_code ignored;
  if (fs::exists(flags.file, ignored)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.file,
                     " is there already, and is not overwritten; name another "
                     "file, as in slackline init other.textproto"));
  }
  if (!any_flag && isatty(STDIN_FILENO) == 1)
    SL_RETURN_IF_ERROR(AskAll(&flags));
  if (!flags.hosts.empty()) {
    absl::StatusOr<std::vector<HostSlots>> hosts = ParseHosts(flags.hosts);
    if (!hosts.ok()) return Annotate(hosts.status(), "--hosts");
    flags.job.hosts = *std::move(hosts);
  }
  SL_ASSIGN_OR_RETURN(const std::string text, FirstConfig(flags.job));
  SL_RETURN_IF_ERROR(WriteFileAtomically(flags.file, {text}));
  // Whatever the flags say, it is a config, or the flag is named. Slurm and Ray
  // have the hosts later.
  ConfigOverrides overrides;
  if (flags.job.engine == "slurm" || flags.job.engine == "ray")
    overrides.hosts = {{.host = "n1", .slots = flags.job.workers}};
  if (const auto config = LoadJobConfig(flags.file, overrides); !config.ok()) {
    fs::remove(flags.file, ignored);
    return absl::InvalidArgumentError(std::string(config.status().message()));
  }
  std::string next =
      absl::StrCat("wrote ", flags.file,
                   "\nnext: ", ShellLine({"slackline", "run", flags.file}));
  if (!flags.job.program.empty()) {
    absl::StrAppend(
        &next,
        "\nThe program joins by `job = slackline.join()`, and gives "
        "it model, optimizer and data: docs/manual/python.md.");
  }
  Say(next);
  if (const std::string warning = ProgramWarning(flags.job.program);
      !warning.empty()) {
    Say(warning);
  }
  return absl::OkStatus();
}

}  // namespace

void AddInitCommand(CLI::App* app, int* exit_code) {
  CLI::App* const init = app->add_subcommand(
      "init",
      "Writes a config to begin with, with comments. In a terminal and without "
      "flags it asks a few questions. Overwrites nothing.");
  const auto flags = std::make_shared<InitFlags>();
  init->add_option("FILE", flags->file,
                   absl::StrCat("Where; default: ", kDefaultFile));
  const std::vector<CLI::Option*> options = {
      init->add_option("--program", flags->job.program,
                       "Command of a program of yours, as in \"python3 "
                       "train.py\"; default: the built-in net on MNIST"),
      init->add_option("--workers", flags->job.workers,
                       "How many, without --hosts; default: 2"),
      init->add_option(
          "--servers", flags->job.servers,
          "How many; default: one for each two workers, at most 4, "
          "and one on each host"),
      init->add_option("--mode", flags->job.mode,
                       "bsp, ssp:S, dssp:MIN:MAX, asp, backup:B, allreduce or "
                       "auto; default: bsp"),
      init->add_option("--on", flags->job.engine,
                       "here, ssh, slurm or ray; default: here"),
      init->add_option("--hosts", flags->hosts,
                       "HOST:WORKERS,... of ssh, as in n1:4,n2:4"),
      init->add_option(
          "--checkpoints", flags->job.checkpoints,
          "Folder; with ssh, slurm and ray one that all hosts share; "
          "default: no checkpoints"),
      init->add_flag("--copies", flags->job.copies,
                     "Each shard has a copy on another server, so that one "
                     "server may die")};
  init->callback([=] {
    bool any = false;
    for (const CLI::Option* const option : options) any |= option->count() > 0;
    const absl::Status done = Init(*flags, any);
    *exit_code = done.ok() ? kExitDone : Fail("init", done);
  });
}

}  // namespace slackline
