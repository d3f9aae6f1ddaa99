#include "tools/cli/job/stop_command.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "tools/cli/command_output.h"
#include "tools/cli/display.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

constexpr absl::Duration kStopLookEvery = absl::Milliseconds(50);
// So often in a row nobody answers before it counts: machines are busy.
constexpr int kSilencesMax = 3;

// "the workers end at step 480 of 1170; 2 of 4 are there, then ..."
std::string LineOf(const wire::StatusReply& status, StopOptions::How how) {
  const wire::View& view = status.view();
  if (how == StopOptions::How::kSuspended) {
    return status.checkpoint().empty()
               ? "the job ends as soon as it has a checkpoint"
               : absl::StrCat("the checkpoint: ", status.checkpoint());
  }
  if (view.end_clock() == 0) return "the workers agree on the last step";
  return absl::StrCat("the workers end at step ", EndOf(view), " of ",
                      view.elastic() ? "about " : "", view.steps_total(), "; ",
                      CountTrained(status), " of ", view.worker_size(),
                      " are there; when their programs have come to their end, "
                      "the model is evaluated and written");
}

// How the job has ended, from the folder of its run, if that is known here.
absl::StatusOr<std::string> EndFromFolder(const std::string& folder) {
  SL_ASSIGN_OR_RETURN(const RunResult result, ReadRunResult(folder));
  const std::string& reason = result.summary.reason();
  if (result.summary.state() == wire::JobState_Name(wire::FINISHED))
    return reason;
  if (result.summary.cause() ==
      wire::JobEnd::Cause_Name(wire::JobEnd::SUSPENDED)) {
    return reason;
  }
  return absl::AbortedError(absl::StrCat("the job has failed: ", reason));
}

// Until the job is over; returns how. Once its members know, nobody is left to
// be asked.
absl::StatusOr<std::string> Await(const StopOptions& options,
                                  JobConnection* job) {
  const std::string& config = options.job.config;
  Display display;
  int silences = 0;
  while (true) {
    const absl::Status status = job->Refresh();
    const wire::View& view = job->status().view();
    if (status.ok()) {
      silences = 0;
      if (view.state() == wire::FINISHED ||
          view.end().cause() == wire::JobEnd::SUSPENDED) {
        return view.end().reason();
      }
      if (view.state() == wire::FAILED)
        return absl::AbortedError(absl::StrCat("the job has ", EndText(view)));
    } else if (IsRunFolder(config) && ReadRunResult(config).ok()) {
      return EndFromFolder(config);
    } else if (++silences == kSilencesMax) {
      // As last seen, it was on its way.
      if (view.end_clock() > 0 && !IsRunFolder(config)) {
        return absl::StrCat("at step ", view.end_clock(),
                            "; summary.json in its folder has the result");
      }
      return Annotate(status,
                      "the end is ordered, and summary.json in the folder of "
                      "the run says how it has come");
    }
    display.ShowState(LineOf(job->status(), options.how));
    absl::SleepFor(kStopLookEvery);
  }
}

absl::Status Stop(const StopOptions& options) {
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  const std::string name = absl::StrCat("job ", job.config().job());
  const auto say = [&](const std::string& text) {
    if (!options.json) PrintResult(absl::StrCat(name, " ", text, "\n"));
  };
  nlohmann::ordered_json json = {
      {"job", job.config().job()}, {"text", nullptr}, {"end", nullptr}};
  if (options.how == StopOptions::How::kAtOnce) {
    SL_RETURN_IF_ERROR(job.client().Stop(options.reason, job.wait_max()));
    const std::string text = absl::StrCat("stops: ", options.reason);
    say(text);
    json["text"] = text;
    if (options.json) PrintJson(json);
    return absl::OkStatus();
  }
  const bool suspends = options.how == StopOptions::How::kSuspended;
  absl::StatusOr<std::string> text = "takes a checkpoint, then it ends";
  if (suspends) {
    SL_RETURN_IF_ERROR(job.client().Suspend(options.reason, job.wait_max()));
  } else {
    text = job.client().Finish(options.reason, job.wait_max());
  }
  if (!text.ok()) {
    return Annotate(text.status(),
                    "the job cannot be ended early (slackline stop --now ends "
                    "it at once, without a model)");
  }
  say(*text);
  json["text"] = *text;
  if (options.wait) {
    SL_ASSIGN_OR_RETURN(const std::string end, Await(options, &job));
    say(absl::StrCat(suspends ? "has ended: " : "has finished: ", end));
    json["end"] = end;
  }
  if (options.json) PrintJson(json);
  return absl::OkStatus();
}

}  // namespace

int StopJob(const StopOptions& options) {
  const absl::Status stopped = Stop(options);
  return stopped.ok() ? kExitDone : Fail("stop", stopped);
}

}  // namespace slackline
