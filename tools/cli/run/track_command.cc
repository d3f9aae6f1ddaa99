#include "tools/cli/run/track_command.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/config/address_secret.h"
#include "common/config/shell_line.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "tools/cli/foreground.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/python_script.h"

namespace slackline {
namespace {

constexpr absl::Duration kTrackRestMax = absl::Seconds(30);
constexpr absl::Duration kTrackLook = absl::Milliseconds(50);
// Then whoever waits is told what for.
constexpr absl::Duration kTrackSay = absl::Seconds(1);

PythonScript ScriptFor(const TrackOptions& options,
                       const std::vector<std::string>& more) {
  PythonScript script = {.bin_dir = options.bin_dir,
                         .name = "slackline_track.py",
                         .modules = {},
                         .arguments = more};
  for (const std::string& to : options.to) {
    const std::string kind = std::string(*absl::StrSplit(to, ':').begin());
    if (kind == "mlflow" || kind == "wandb") script.modules.push_back(kind);
    script.arguments.push_back(absl::StrCat("--to=", to));
  }
  if (!options.project.empty())
    script.arguments.push_back(absl::StrCat("--project=", options.project));
  if (options.model) script.arguments.emplace_back("--model");
  if (!options.follow) script.arguments.emplace_back("--no-follow");
  script.arguments.emplace_back("--");
  script.arguments.push_back(options.folder);
  return script;
}

// It says itself what is wrong, unless it cannot run at all.
int RunTrackScript(const PythonScript& script) {
  const auto complain = [&](absl::string_view text) {
    Display().Print(absl::StrCat("slackline track: ", text));
    return kExitFailed;
  };
  const absl::StatusOr<std::vector<std::string>> command = CommandOf(script);
  if (!command.ok()) return complain(command.status().message());
  const absl::StatusOr<ExitStatus> exit = RunInForeground(*command);
  if (!exit.ok()) return complain(exit.status().message());
  if (exit->ok()) return kExitDone;
  if (exit->code == kNoPython)
    return complain("there is no python3; install it: apt-get install python3");
  if (exit->signal != 0)
    return complain(absl::StrCat(script.name, " ", exit->ToString()));
  return exit->code == kExitUsage ? kExitUsage : kExitFailed;
}

}  // namespace

std::string TrackerProblem(const std::string& to) {
  if (!MayHaveSecret(to)) return "";
  return absl::StrCat("there is an '@', a password or a token in its address; ",
                      kWithoutSecret);
}

TrackOptions TrackOptionsOf(const config::Track& track,
                            const std::vector<std::string>& flags,
                            const std::string& folder,
                            const std::string& bin_dir) {
  TrackOptions options = {.folder = folder,
                          .bin_dir = bin_dir,
                          .to = flags,
                          .project = track.project(),
                          .model = track.model()};
  if (!flags.empty()) return options;
  const auto add = [&](bool is_given, const char* kind,
                       const std::string& place) {
    if (!is_given) return;
    options.to.push_back(absl::StrCat(kind, place.empty() ? "" : ":", place));
  };
  add(track.has_mlflow(), "mlflow", track.mlflow().place());
  add(track.has_wandb(), "wandb", track.wandb().folder());
  add(track.has_tensorboard(), "tensorboard", track.tensorboard().folder());
  return options;
}

int Track(const TrackOptions& options) {
  return RunTrackScript(ScriptFor(options, {}));
}

int CheckTrackers(const TrackOptions& options, TrackersCheck check) {
  if (options.to.empty()) return kExitDone;
  return RunTrackScript(ScriptFor(
      options,
      {check == TrackersCheck::kNames ? "--check=names" : "--check=packages"}));
}

absl::StatusOr<std::unique_ptr<Tracking>> Tracking::Start(
    const TrackOptions& options, Display* display) {
  if (options.to.empty()) return nullptr;
  const std::string logs = options.folder + "/logs";
  std::error_code error;  // Opening the log says it, too.
  std::filesystem::create_directories(logs, error);
  const std::string log = logs + "/track.log";
  SL_ASSIGN_OR_RETURN(const std::vector<std::string> command,
                      CommandOf(ScriptFor(options, {"--until-told"})));
  SL_ASSIGN_OR_RETURN(Pipe until, OpenPipe());
  SL_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start({.command = command,
                           .log_path = log,
                           .standard_input = until.read.get()}));
  return std::unique_ptr<Tracking>(new Tracking(
      options, log, std::move(until.write), std::move(child), display));
}

Tracking::~Tracking() {
  until_ = Descriptor();
  std::optional<ExitStatus> exit = child_.Poll();
  for (absl::Duration passed; !exit.has_value() && passed < kTrackRestMax;
       passed += kTrackLook) {
    if (passed == kTrackSay) {
      display_->Print(
          absl::StrCat("sends the last records to the tracker, for at most ",
                       absl::FormatDuration(kTrackRestMax)));
    }
    absl::SleepFor(kTrackLook);
    exit = child_.Poll();
  }
  if (exit.has_value() && exit->ok()) return;
  std::string why = absl::StrCat("it was not done within ",
                                 absl::FormatDuration(kTrackRestMax));
  if (exit.has_value()) {
    const std::vector<std::string> lines = LastLines(ReadTail(log_), 1);
    why = lines.empty() ? exit->ToString() : lines.front();
  }
  std::vector<std::string> words = {"slackline", "track", options_.folder};
  for (const std::string& to : options_.to)
    words.insert(words.end(), {"--to", to});
  if (!options_.project.empty())
    words.insert(words.end(), {"--project", options_.project});
  if (options_.model) words.emplace_back("--model");
  display_->Print(absl::StrCat("warning: not all records have been sent: ", why,
                               "\nto send them: ", ShellLine(words)));
}

}  // namespace slackline
