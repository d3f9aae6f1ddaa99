#include "tools/cli/job/lost_run.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/config/shell_line.h"
#include "job/job_config.h"
#include "server/coordinator/run_files.h"
#include "tools/cli/job/run_folder.h"
#include "tools/cli/job/run_records.h"

namespace slackline {
namespace {

bool HasOwnCheckpoint(const std::string& folder) {
  const absl::StatusOr<config::ClusterConfig> config =
      LoadJobConfig(ClusterFileOf(folder));
  return config.ok() &&
         HasCheckpoint(
             CheckpointRoot(*config, folder),
             [&](const checkpoint::Manifest& manifest) {
               return HasRecordsOf(folder, manifest.run()).value_or(false);
             });
}

}  // namespace

std::string LostRunText(const std::string& folder) {
  if (!IsRunFolder(folder) || HasEnded(folder)) return "";
  const RecordsEnd end =
      PutRecordsOf(folder, /*from_step=*/0, /*summary=*/nullptr);
  if (end.records == 0) return "";
  return absl::StrCat(
      "the run in ", folder,
      " ended without a word: its processes are gone, and nobody was left to "
      "write summary.json and failure.txt, as when `slackline run` itself is "
      "killed, or its host goes down; its records end at ",
      end.ToString());
}

std::string UnknownRunText(const std::string& folder, const std::string& seen) {
  if (!IsRunFolder(folder) || HasEnded(folder)) return "";
  const RecordsEnd end =
      PutRecordsOf(folder, /*from_step=*/0, /*summary=*/nullptr);
  return absl::StrCat(
      "whether the run in ", folder, " runs still is not known here: ", seen,
      end.records == 0 ? ""
                       : absl::StrCat("; its records end at ", end.ToString()),
      "; two cannot write there, so see on its hosts that no process of it is "
      "left");
}

std::string LostRunAdvice(const std::string& folder) {
  const std::string line =
      ShellLine({"slackline", "run", ClusterFileOf(folder), "--out", folder});
  return HasOwnCheckpoint(folder)
             ? absl::StrCat("`", line, "` goes on from its last checkpoint")
             : absl::StrCat("it has no checkpoint, so `", line,
                            " --new-run` begins it anew");
}

}  // namespace slackline
