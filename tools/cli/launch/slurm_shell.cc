#include "absl/strings/match.h"
#include "tools/cli/launch/remote_shell.h"

namespace slackline {

RemoteShell SlurmShell(const config::Slurm& slurm) {
  RemoteShell shell;
  shell.name = "slurm";
  shell.line = [slurm](const std::string& host,
                       const std::vector<std::string>& command) {
    // One agent on the node, beside whatever else the job runs there; srun
    // hands stdin and stdout on as they are.
    // What a site or a user sets for other programs: labels and files in place
    // of the stream.
    std::vector<std::string> words = {"env",
                                      "-u",
                                      "SLURM_LABELIO",
                                      "-u",
                                      "SLURM_STDINMODE",
                                      "-u",
                                      "SLURM_STDOUTMODE",
                                      "-u",
                                      "SLURM_STDERRMODE",
                                      slurm.program(),
                                      "--nodelist",
                                      host,
                                      "--nodes=1",
                                      "--ntasks=1",
                                      "--overlap",
                                      "--unbuffered",
                                      "--kill-on-bad-exit=0",
                                      "--input=0"};
    words.insert(words.end(), slurm.option().begin(), slurm.option().end());
    words.insert(words.end(), command.begin(), command.end());
    return words;
  };
  shell.advice = [](const std::string& /*host*/, absl::string_view output) {
    if (absl::StartsWith(output, "env: ")) {
      return "srun is not found: install the programs of Slurm, or name it by "
             "launch { slurm { program: ... } }";
    }
    if (absl::StrContains(output, "Unable to create step") ||
        absl::StrContains(output, "not in job")) {
      return "it is not of this allocation: begin one that has it, as by "
             "`salloc "
             "-N2`, and name its nodes";
    }
    return "";
  };
  return shell;
}

}  // namespace slackline
