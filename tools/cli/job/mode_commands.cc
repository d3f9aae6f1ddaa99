#include "tools/cli/job/mode_commands.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/config/cluster_config.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/command_output.h"
#include "tools/cli/display.h"
#include "tools/cli/job/mode_text.h"
#include "tools/cli/job/mode_watch.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

constexpr absl::Duration kModeLookEvery = absl::Milliseconds(50);

// Asks how the job stands until the change is over, and shows `watch`
// meanwhile.
absl::Status Await(JobConnection* job, ModeWatch* watch) {
  Display display;
  while (true) {
    SL_RETURN_IF_ERROR(Annotate(
        job->Refresh(), "the change is ordered, but how it ends is unknown"));
    watch->Update(job->status());
    if (watch->Over()) return absl::OkStatus();
    const wire::View& view = job->status().view();
    if (view.state() != wire::RUNNING) {
      return absl::AbortedError(
          absl::StrCat("the job has ended (", EndText(view),
                       ") before the mode had changed; ", watch->Line()));
    }
    display.ShowState(watch->Line());
    absl::SleepFor(kModeLookEvery);
  }
}

absl::Status Change(const ChangeModeOptions& options) {
  SL_ASSIGN_OR_RETURN(const wire::SetMode mode, ParseMode(options.mode));
  SL_ASSIGN_OR_RETURN(JobConnection job, JobConnection::Open(options.job));
  ModeWatch watch(mode.mode(), job.status());
  SL_ASSIGN_OR_RETURN(const std::string text,
                      job.client().SetMode(mode, job.wait_max()));
  if (!options.json)
    PrintResult(absl::StrCat("job ", job.config().job(), ": ", text, "\n"));
  const auto print_json = [&] {
    if (!options.json) return;
    nlohmann::ordered_json json = {
        {"job", job.config().job()}, {"text", text}, {"changed", nullptr}};
    if (watch.record().has_value()) json["changed"] = ToJson(*watch.record());
    PrintJson(json);
  };
  // The policy changes the mode when it sees fit.
  if (!options.wait || mode.has_by_policy()) {
    print_json();
    return absl::OkStatus();
  }
  SL_RETURN_IF_ERROR(Await(&job, &watch));
  if (watch.state() == ModeWatch::State::kDropped) {
    return absl::AbortedError(watch.Line());
  }
  if (!options.json) {
    PrintResult(absl::StrCat(watch.record().has_value()
                                 ? ModeChangeText(*watch.record())
                                 : watch.Line(),
                             "\n"));
  }
  print_json();
  return absl::OkStatus();
}

}  // namespace

int ShowModes(const ShowModesOptions& options) {
  const absl::StatusOr<JobConnection> job = JobConnection::Open(options.job);
  if (!job.ok()) return Fail("mode show", job.status());
  if (options.json) {
    PrintJson(ModesJson(job->status()));
  } else {
    PrintResult(ModesText(job->status()));
  }
  return kExitDone;
}

int ChangeMode(const ChangeModeOptions& options) {
  const absl::Status changed = Change(options);
  return changed.ok() ? kExitDone : Fail("mode set", changed);
}

}  // namespace slackline
