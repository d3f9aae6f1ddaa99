#include "tools/cli/experiment/replay_command.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/io/atomic_file.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "job/job_config.h"
#include "tools/cli/data/find_data.h"
#include "tools/cli/display.h"
#include "tools/cli/foreground.h"
#include "tools/cli/installed.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/run/out_folder.h"
#include "tools/experiment/replay_spec.h"

namespace slackline {
namespace {

// Everything after the checks of what the user asked for. Ends with the exit
// code of the program, which says itself what is wrong.
absl::StatusOr<int> RunReplay(const ReplayOptions& options,
                              const config::ClusterConfig& config,
                              const std::string& delays, Display* display) {
  SL_RETURN_IF_ERROR(CheckHasModel(config, "a replay"));
  SL_RETURN_IF_ERROR(CheckInstalled(options.bin_dir, kReplayProgram));
  SL_ASSIGN_OR_RETURN(const std::string data_dir,
                      FindData(config, options.data_dir, display));
  SL_ASSIGN_OR_RETURN(
      const std::string out_dir,
      MakeOutFolder(options.out_dir, config.job(),
                    absl::StrCat("replay-", ReplayName(options.delays))));
  const std::string cluster_file = absl::StrCat(out_dir, "/cluster.textproto");
  SL_RETURN_IF_ERROR(WriteFileAtomically(
      cluster_file,
      {absl::StrCat("# Written by `slackline replay` from ",
                    options.config_path, ": what was left out is filled in.\n"),
       ToText(config)}));
  display->Print(absl::StrCat(
      "replay of ", delays, ": job ", config.job(), ", seed ",
      config.train().seed(), ", ", config.train().epochs(), " epochs, ",
      WorkerProcesses(config).size(),
      " workers in one process\ndata: ", data_dir, "\nfolder: ", out_dir));
  SL_ASSIGN_OR_RETURN(
      const ExitStatus exit,
      RunInForeground({absl::StrCat(options.bin_dir, "/", kReplayProgram),
                       absl::StrCat("--cluster=", cluster_file),
                       absl::StrCat("--delays=", delays),
                       absl::StrCat("--data-dir=", data_dir),
                       absl::StrCat("--out=", out_dir)}));
  if (exit.signal != 0) {
    return absl::AbortedError(
        absl::StrCat(kReplayProgram, " ", exit.ToString()));
  }
  if (!exit.ok()) return exit.code;
  SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(out_dir));
  const std::string table = SummaryTable({result});
  std::fwrite(table.data(), 1, table.size(), stdout);
  return kExitDone;
}

}  // namespace

int Replay(const ReplayOptions& options) {
  Display display;
  const auto complain = [&](absl::string_view text) {
    display.Print(absl::StrCat("slackline replay: ", text));
  };
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(options.config_path, options.overrides);
  if (!config.ok()) {
    complain(config.status().message());
    return kExitUsage;
  }
  const absl::StatusOr<ReplaySpec> delays = ParseReplaySpec(options.delays, "");
  if (!delays.ok()) {
    complain(absl::StrCat("--delays: ", delays.status().message()));
    return kExitUsage;
  }
  const absl::StatusOr<int> exit_code =
      RunReplay(options, *config, delays->text, &display);
  if (exit_code.ok()) return *exit_code;
  complain(exit_code.status().message());
  return kExitFailed;
}

}  // namespace slackline
