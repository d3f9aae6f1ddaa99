#include "tools/cli/run/submit_run.h"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/config/cluster_config.h"
#include "common/config/shell_line.h"
#include "common/io/regular_file.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/display.h"
#include "tools/cli/launch/slurm_script.h"
#include "tools/cli/run/hosts_of_run.h"
#include "tools/cli/run/job_place.h"
#include "tools/cli/run/job_text.h"
#include "tools/cli/run/out_folder.h"
#include "tools/cli/run/run_beginning.h"
#include "tools/cli/run/slurm_run.h"
#include "tools/cli/signals.h"

namespace slackline {

absl::StatusOr<int> RunBySlurm(RunOptions options, const SlurmPlan& plan,
                               const config::ClusterConfig& config,
                               Display* display) {
  const std::string mode = ModeText(config);
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  const auto script = [&](const std::string& out_dir) {
    std::vector<std::string> command = options.batch_command;
    // The first node runs what the nodes have.
    if (config.launch().has_bin_dir())
      command.front() = absl::StrCat(config.launch().bin_dir(), "/slackline");
    command.insert(command.end(), {"--out", out_dir});
    const std::vector<std::string>& program = options.overrides.worker_command;
    if (!program.empty()) {
      command.emplace_back("--");
      command.insert(command.end(), program.begin(), program.end());
    }
    return SlurmScript({.config = config,
                        .on_these_hosts = plan.on_named_hosts,
                        .command = std::move(command),
                        .folder = folder,
                        .out_dir = out_dir});
  };
  if (options.print_script) {
    const std::string out_dir =
        options.out_dir.empty()
            ? absl::StrCat("runs/",
                           RunName(config.job(), mode, TimeSource().WallNow()))
            : options.out_dir;
    SL_ASSIGN_OR_RETURN(const std::string text, script(out_dir));
    std::fwrite(text.data(), 1, text.size(), stdout);
    display->Print(absl::StrCat(
        "nothing is submitted: --print; sbatch needs the folder of the "
        "output: ",
        ShellLine({"mkdir", "-p", absl::StrCat(out_dir, "/", kSlurmFolder)})));
    return kExitDone;
  }
  std::unique_ptr<SignalWatch> signals;
  if (!options.out_dir.empty()) {
    SL_ASSIGN_OR_RETURN(const std::optional<std::string> before,
                        SlurmJobOfRun(options.out_dir));
    if (before.has_value()) {
      SL_ASSIGN_OR_RETURN(const std::string asked, script(options.out_dir));
      const absl::StatusOr<std::string> submitted = ReadRegularFile(
          SlurmScriptPath(options.out_dir), kConfigFileBytesMax);
      if (submitted.ok() && *submitted != asked) {
        return absl::FailedPreconditionError(absl::StrCat(
            "--out: the run in ", options.out_dir, " is Slurm job ", *before,
            ", which was submitted by another command (",
            SlurmScriptPath(options.out_dir),
            "); choose another folder, or end that job: scancel ", *before));
      }
      display->Print(absl::StrCat("the run in ", options.out_dir,
                                  " is Slurm job ", *before,
                                  " already; nothing is submitted",
                                  WatchText(*before, options.out_dir)));
      if (!options.detach) {
        SL_ASSIGN_OR_RETURN(signals, SignalWatch::Create());
        return FollowRun(*before, options.out_dir, /*from_now=*/true,
                         signals.get(), display);
      }
      std::printf("%s\n", before->c_str());
      return kExitDone;
    }
  }
  const std::unique_ptr<JobPlace> place = PlaceOf(options, config, display);
  SL_RETURN_IF_ERROR(place->Check());
  bool has_run = false;
  std::optional<int> over;
  SL_RETURN_IF_ERROR(
      LookAtRunInFolder(config, &options, &has_run, &over, display));
  if (over.has_value()) return *over;
  if (!options.resume.empty())
    SL_RETURN_IF_ERROR(ReadCheckpointOf(options, config, display).status());
  // What is not there yet is fetched here: nodes often have no way out.
  SL_RETURN_IF_ERROR(place->FindData().status());
  std::string out_dir = options.out_dir;
  SL_RETURN_IF_ERROR(script(out_dir).status());
  if (out_dir.empty() || HasNothingBegun(out_dir)) {
    SL_ASSIGN_OR_RETURN(out_dir, MakeOutFolder(out_dir, config.job(), mode));
  }
  SL_ASSIGN_OR_RETURN(const std::string text, script(out_dir));
  // From here on Ctrl-C is for the job, which may be submitted already.
  SL_ASSIGN_OR_RETURN(signals, SignalWatch::Create());
  SL_ASSIGN_OR_RETURN(const std::string id, SubmitRun(text, out_dir));
  const SlurmNeeds needs = NeedsOf(config);
  display->Print(absl::StrCat(
      JobText(config), ": Slurm job ", id, " (", SlurmScriptPath(out_dir),
      "), ", needs.nodes, needs.nodes == 1 ? " node" : " nodes", " with ",
      needs.cpus_per_node, " processors",
      needs.gpus_per_node > 0
          ? absl::StrCat(" and ", needs.gpus_per_node, " GPUs")
          : "",
      needs.nodes > 1 ? " each" : "", "\nfolder: ", out_dir,
      WatchText(id, out_dir)));
  if (options.detach) {
    std::printf("%s\n", id.c_str());
    return kExitDone;
  }
  return FollowRun(id, out_dir, /*from_now=*/false, signals.get(), display);
}

}  // namespace slackline
