#include "tools/cli/job/checkpoint_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/command_output.h"
#include "tools/cli/display.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

// So long for an answer, then a look at what is under way.
constexpr absl::Duration kCheckpointLookEvery = absl::Milliseconds(500);
// So often in a row nobody answers before it counts: machines are busy.
constexpr int kSilencesMax = 3;

std::string LineOf(const wire::StatusReply& status) {
  return status.checkpoint().empty()
             ? "the checkpoint is ordered"
             : absl::StrCat("the checkpoint: ", status.checkpoint());
}

// Until the coordinator says that it is there: what it says.
absl::StatusOr<std::string> Await(const CheckpointOptions& options,
                                  JobConnection* job) {
  Display display;
  const absl::Time deadline = TimeSource().Now() + options.deadline;
  int silences = 0;
  while (true) {
    SL_ASSIGN_OR_RETURN(
        const std::optional<std::string> text,
        job->client().Checkpoint(
            std::min(kCheckpointLookEvery, deadline - TimeSource().Now())));
    if (text.has_value()) return *text;
    if (TimeSource().Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "the checkpoint is not there after ",
          absl::FormatDuration(options.deadline), " (", LineOf(job->status()),
          "); it is still taken, and `slackline status` shows when it is "
          "there"));
    }
    const absl::Status refreshed = job->Refresh();
    if (!refreshed.ok() && ++silences == kSilencesMax) {
      return Annotate(refreshed,
                      "the checkpoint is ordered, but what has become of it is "
                      "unknown");
    }
    if (refreshed.ok()) silences = 0;
    display.ShowState(LineOf(job->status()));
  }
}

absl::Status Take(const CheckpointOptions& options) {
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  SL_ASSIGN_OR_RETURN(const std::string text, Await(options, &job));
  if (!options.json) {
    PrintResult(absl::StrCat("job ", job.config().job(), ": ", text, "\n"));
    return absl::OkStatus();
  }
  nlohmann::ordered_json json = {
      {"job", job.config().job()}, {"text", text}, {"checkpoint", nullptr}};
  // Of the job as it is now: another one may have come since.
  if (job.Refresh().ok() && job.status().has_last_checkpoint())
    json["checkpoint"] = ToJson(job.status().last_checkpoint());
  PrintJson(json);
  return absl::OkStatus();
}

}  // namespace

int CheckpointJob(const CheckpointOptions& options) {
  const absl::Status taken = Take(options);
  return taken.ok() ? kExitDone : Fail("checkpoint", taken);
}

}  // namespace slackline
