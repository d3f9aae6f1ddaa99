#include "tools/cli/python_script.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "tools/cli/installed.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

// Finds a program on the user's search path, or ends with kNoPython.
constexpr char kSearch[] = "/usr/bin/env";
constexpr char kUsers[] = "python3";
constexpr char kSystems[] = "/usr/bin/python3";
// Finding a module takes far less time than importing it.
constexpr char kProbe[] =
    // Not what lies in this folder: wandb makes one of its name.
    "import importlib.util, sys; sys.path.pop(0); "
    "sys.exit(not all(map(importlib.util.find_spec, sys.argv[1:])))";

absl::StatusOr<std::string> PythonWith(
    const std::vector<std::string>& modules) {
  for (const char* const python : {kUsers, kSystems}) {
    std::vector<std::string> probe = {kSearch, python, "-c", kProbe};
    probe.insert(probe.end(), modules.begin(), modules.end());
    SL_ASSIGN_OR_RETURN(
        ChildProcess child,
        ChildProcess::Start({.command = probe, .log_path = "/dev/null"}));
    if (child.Wait().ok()) return std::string(python);
  }
  return std::string(kUsers);
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CommandOf(const PythonScript& script) {
  SL_RETURN_IF_ERROR(CheckInstalled(script.bin_dir, script.name));
  SL_ASSIGN_OR_RETURN(const std::string python, PythonWith(script.modules));
  std::vector<std::string> command = {
      kSearch, python, absl::StrCat(script.bin_dir, "/", script.name)};
  command.insert(command.end(), script.arguments.begin(),
                 script.arguments.end());
  return command;
}

}  // namespace slackline
