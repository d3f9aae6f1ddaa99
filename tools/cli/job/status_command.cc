#include "tools/cli/job/status_command.h"

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/process/exit_code.h"
#include "common/some_names.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "server/coordinator/failure_page.h"
#include "tools/cli/command_output.h"
#include "tools/cli/job/stacks.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/json.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

int CodeOfEnd(bool finished, bool suspended) {
  if (finished) return kStatusFinished;
  return suspended ? kExitSuspended : kStatusFailed;
}

int CodeOf(const wire::View& view) {
  switch (view.state()) {
    case wire::FORMING:
      return kStatusForming;
    case wire::FINISHED:
    case wire::FAILED:
      return CodeOfEnd(view.state() == wire::FINISHED,
                       view.end().cause() == wire::JobEnd::SUSPENDED);
    default:
      return kStatusRunning;
  }
}

// Prints stacks as they come; as JSON when all are there.
absl::Status ShowStacks(const StatusOptions& options, SignalWatch* signals,
                        JobConnection* job) {
  constexpr absl::Duration kLookEvery = absl::Milliseconds(50);
  constexpr absl::Duration kWorthSaying = absl::Seconds(1);
  SL_ASSIGN_OR_RETURN(
      StacksQuestion question,
      StacksQuestion::Ask(&job->client(), options.stacks_of, job->wait_max()));
  const TimeSource time;
  const absl::Time asked = time.Now();
  bool said = false;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<wire::Inspected> inspected,
                        question.Next());
    if (inspected.has_value()) {
      if (options.json) {
        all.push_back(StacksJson(*inspected));
      } else {
        PrintResult(StacksText(*inspected));
      }
      continue;
    }
    const absl::Duration waited = time.Now() - asked;
    if (question.over() || waited >= StacksQuestion::kPatience) break;
    if (waited >= kWorthSaying && !said) {
      Say(absl::StrCat("waiting for ", SomeNames(question.missing())));
      said = true;
    }
    if (signals->Wait(kLookEvery).all() > 0) break;
  }
  if (options.json) {
    PrintJson({{"stacks", all},
               {"missing", question.missing()},
               {"gone", question.gone()}});
    return absl::OkStatus();
  }
  for (const std::string& sentence : question.gone()) Say(sentence);
  for (const std::string& name : question.missing()) {
    Say(absl::StrCat(name,
                     " does not answer: its process is stopped, or cannot "
                     "reach the coordinator"));
  }
  return absl::OkStatus();
}

// Returns the exit code.
absl::StatusOr<int> Show(const StatusOptions& options) {
  const std::string& config = options.job.config;
  if (HasEnded(config)) {
    SL_RETURN_IF_ERROR(ShowEnd(config, options.json));
    if (options.stacks)
      Say("the job has ended: no process is left to be asked for its stacks");
    SL_ASSIGN_OR_RETURN(const RunResult run, ReadRunResult(config));
    return CodeOfEnd(run.summary.state() == wire::JobState_Name(wire::FINISHED),
                     run.summary.cause() ==
                         wire::JobEnd::Cause_Name(wire::JobEnd::SUSPENDED));
  }
  if (const std::string waits = WaitsInSlurm(config);
      !waits.empty() && !options.json) {
    PrintResult(absl::StrCat(waits, "\n"));
    return kStatusForming;
  }
  // Before the connection, whose threads must not take the signals.
  std::unique_ptr<SignalWatch> signals;
  if (options.stacks) {
    SL_ASSIGN_OR_RETURN(signals, SignalWatch::Create());
  }
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  if (options.stacks) {
    SL_RETURN_IF_ERROR(ShowStacks(options, signals.get(), &job));
    return CodeOf(job.status().view());
  }
  const Configured configured = ConfiguredBy(job.config());
  if (options.json) {
    PrintJson(StatusJson(job.status(), configured));
  } else {
    PrintResult(StatusTable(job.status(), configured, options.table));
  }
  return CodeOf(job.status().view());
}

}  // namespace

absl::Status ShowEnd(const std::string& folder, bool json, bool in_a_line) {
  if (json) {
    SL_ASSIGN_OR_RETURN(const nlohmann::ordered_json run, ReadRunJson(folder));
    in_a_line ? PrintJsonLine(run) : PrintJson(run);
    return absl::OkStatus();
  }
  SL_ASSIGN_OR_RETURN(const RunResult run, ReadRunResult(folder));
  std::error_code error;
  const std::string page = FailurePath(folder);
  PrintResult(absl::StrCat(
      "job ", run.summary.job(), " has ended: ", EndText(run.summary), "\n\n",
      SummaryTable({run}),
      std::filesystem::exists(page, error)
          ? absl::StrCat("who failed, and what to do: ", page, "\n")
          : ""));
  return absl::OkStatus();
}

int ShowStatus(const StatusOptions& options) {
  const absl::StatusOr<int> shown = Show(options);
  if (shown.ok()) return *shown;
  const int code = Fail("status", shown.status());
  return absl::IsDeadlineExceeded(shown.status()) ? kStatusNotReached : code;
}

}  // namespace slackline
