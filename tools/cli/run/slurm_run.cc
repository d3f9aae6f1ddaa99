#include "tools/cli/run/slurm_run.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/config/shell_line.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/process/exit_code.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/job/progress.h"
#include "tools/cli/job/summary_table.h"
#include "tools/cli/launch/slurm_follower.h"
#include "tools/cli/launch/slurm_script.h"
#include "tools/cli/launch/slurm_tools.h"
#include "tools/cli/run/live_progress.h"
#include "tools/cli/signals.h"

namespace slackline {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kIdBytesMax = 64;
constexpr absl::Duration kSlice = absl::Milliseconds(100);
constexpr size_t kPartBytesMax = 64 << 10;

// The last job that was submitted for the run, and the one that has begun it.
std::string SubmittedPath(const std::string& out_dir) {
  return absl::StrCat(out_dir, "/", kSlurmFolder, "/submitted");
}
std::string BegunPath(const std::string& out_dir) {
  return absl::StrCat(out_dir, "/", kSlurmFolder, "/begun");
}

absl::Status MakeSlurmFolder(const std::string& out_dir) {
  const std::string folder = absl::StrCat(out_dir, "/", kSlurmFolder);
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "--out: folder ", folder, " cannot be made: ", error.message()));
}

// A file with an id; empty: it is not there.
std::string ReadId(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, kIdBytesMax);
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "";
}

// The output of the job, line by line as it grows.
class OutputTail {
 public:
  explicit OutputTail(std::string path) : path_(std::move(path)) {}

  bool IsThere() const {
    std::error_code ignored;
    return fs::exists(path_, ignored);
  }
  // From its end on: what is there was followed before.
  void SkipWhatIsThere() {
    std::error_code error;
    const uintmax_t size = fs::file_size(path_, error);
    if (!error) offset_ = static_cast<std::streamoff>(size);
  }

  // What has come since the last call; `with_progress`: also lines of progress.
  void Print(bool with_progress, Display* display) {
    std::ifstream file(path_, std::ios::binary);
    if (!file.seekg(offset_)) return;
    std::string part(kPartBytesMax, '\0');
    while (true) {
      file.read(part.data(), static_cast<std::streamsize>(part.size()));
      const absl::string_view got(part.data(),
                                  static_cast<size_t>(file.gcount()));
      // Up to the end of the last whole line, or all where there is none.
      size_t whole = got.rfind('\n') + 1;
      if (whole == 0 && got.size() < part.size()) return;
      if (whole == 0) whole = got.size();
      offset_ += static_cast<std::streamoff>(whole);
      for (const absl::string_view line : absl::StrSplit(
               absl::StripSuffix(got.substr(0, whole), "\n"), '\n')) {
        if (with_progress || !Progress::IsLine(line)) display->Print(line);
      }
      file.clear();
      if (!file.seekg(offset_)) return;
    }
  }

 private:
  const std::string path_;
  std::streamoff offset_ = 0;
};

class Following {
 public:
  Following(const std::string& id, const std::string& out_dir, bool from_now,
            Display* display)
      : id_(id),
        out_dir_(out_dir),
        display_(display),
        follower_(id, time_.Now()),
        tail_(SlurmOutputPath(out_dir, id)),
        live_(out_dir) {
    if (from_now) tail_.SkipWhatIsThere();
  }

  // The exit code, once the job is over.
  std::optional<int> Perform(const SlurmFollower::Effects& effects) {
    // What the job has said comes before what is said of it.
    PrintTail();
    for (const std::string& line : effects.lines) display_->Print(line);
    if (effects.cancel_waiting) Complain(CancelSlurmJob(id_, /*waiting=*/true));
    if (effects.cancel) Complain(CancelSlurmJob(id_, /*waiting=*/false));
    for (int i = 0; i < effects.interrupts; ++i)
      Complain(InterruptSlurmJob(id_));
    if (effects.over_unseen) return CodeOfForgotten();
    return effects.exit_code;
  }

  absl::StatusOr<int> Run(SignalWatch* signals) {
    while (true) {
      const SignalWatch::Requests requests = signals->Wait(kSlice);
      if (requests.terminations + requests.hangups > 0) {
        return absl::AbortedError(
            absl::StrCat("the following of Slurm job ", id_,
                         " was ended by a signal; the job goes on: ",
                         WatchText(id_, out_dir_)));
      }
      for (int i = 0; i < requests.interrupts + requests.quits; ++i) {
        Perform(follower_.OnInterrupt(time_.Now()));
        next_look_ = time_.Now();
      }
      PrintTail();
      NoteEnd();
      if (time_.Now() >= next_look_) {
        if (const std::optional<int> code = Look(); code.has_value())
          return *code;
      }
      Redraw();
    }
  }

 private:
  void PrintTail() {
    const bool is_drawn = display_->terminal() && live_.IsHeard(time_.Now());
    tail_.Print(/*with_progress=*/!is_drawn, display_);
  }

  void Redraw() {
    if (!display_->terminal()) return;
    const std::string waiting = follower_.WaitingLine();
    const auto width = static_cast<size_t>(display_->width());
    if (!waiting.empty()) return display_->Redraw({waiting.substr(0, width)});
    if (!follower_.Runs()) return display_->Redraw({});
    live_.Poll(time_.Now());
    display_->Redraw(live_.Block(display_->width(), time_.Now()));
  }

  void Complain(const absl::Status& status) {
    if (!status.ok())
      display_->Print(absl::StrCat("warning: ", status.message()));
  }

  std::optional<int> Look() {
    const absl::StatusOr<std::optional<SlurmJob>> job = LookAtSlurmJob(id_);
    const absl::Time now = time_.Now();
    next_look_ = follower_.NextLook(now);
    if (absl::IsNotFound(job.status())) {
      display_->Print(std::string(job.status().message()));
      return kExitFailed;
    }
    if (!job.ok()) {  // A controller that is busy, or is started again.
      if (!unheard_) Complain(job.status());
      unheard_ = true;
      return std::nullopt;
    }
    unheard_ = false;
    return Perform(follower_.OnLook(*job, tail_.IsThere(), now));
  }

  // The summary is the last that a run writes.
  void NoteEnd() {
    std::error_code ignored;
    const bool ended =
        fs::exists(absl::StrCat(out_dir_, "/summary.json"), ignored);
    if (ended && !ended_) {
      follower_.OnEndSeen(time_.Now());
      next_look_ = time_.Now();
    }
    ended_ = ended;
  }

  int CodeOfForgotten() const {
    const absl::StatusOr<RunResult> result = ReadRunResult(out_dir_);
    const bool finished =
        result.ok() &&
        result->summary.state() == wire::JobState_Name(wire::FINISHED);
    display_->Print(
        absl::StrCat("Slurm does not know job ", id_, " any more; ",
                     finished ? "its run has finished"
                              : absl::StrCat("`slackline status ", out_dir_,
                                             "` says how its run stands")));
    return finished ? kExitDone : kExitFailed;
  }

  const TimeSource time_;
  const std::string id_;
  const std::string out_dir_;
  Display* const display_;
  SlurmFollower follower_;
  OutputTail tail_;
  LiveProgress live_;
  bool unheard_ = false;
  bool ended_ = true;  // One that is there already is of an earlier run.
  absl::Time next_look_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<std::optional<std::string>> SlurmJobOfRun(
    const std::string& out_dir) {
  const std::string id = ReadId(SubmittedPath(out_dir));
  if (id.empty()) return std::nullopt;
  SL_ASSIGN_OR_RETURN(const std::optional<SlurmJob> job, LookAtSlurmJob(id));
  if (!job.has_value() || SlurmJobIsOver(*job)) return std::nullopt;
  return id;
}

absl::StatusOr<std::string> SubmitRun(const std::string& script,
                                      const std::string& out_dir) {
  SL_RETURN_IF_ERROR(MakeSlurmFolder(out_dir));
  const std::string path = SlurmScriptPath(out_dir);
  SL_RETURN_IF_ERROR(WriteFileAtomically(path, {script}));
  const absl::StatusOr<std::string> id = SubmitToSlurm(path);
  if (!id.ok()) {
    // What has not begun leaves nothing.
    std::error_code ignored;
    fs::remove(path, ignored);
    fs::remove(fs::path(path).parent_path(), ignored);
    fs::remove(out_dir, ignored);
    return id.status();
  }
  SL_RETURN_IF_ERROR(WriteFileAtomically(SubmittedPath(out_dir), {*id, "\n"}));
  return *id;
}

std::string WatchText(const std::string& id, const std::string& out_dir) {
  return absl::StrCat(
      "\n  to watch it: squeue --jobs=", id, "; ",
      ShellLine({"tail", "-f", SlurmOutputPath(out_dir, id)}), "; ",
      ShellLine({"slackline", "status", out_dir}),
      "\n  to end it early, with its model: scancel --batch --signal=INT ", id,
      "\n  to end it at once: scancel ", id);
}

absl::StatusOr<int> FollowRun(const std::string& id, const std::string& out_dir,
                              bool from_now, SignalWatch* signals,
                              Display* display) {
  Following following(id, out_dir, from_now, display);
  SL_ASSIGN_OR_RETURN(const int code, following.Run(signals));
  display->Redraw({});
  // The terminal has had it with the job's output.
  const bool seen = isatty(STDOUT_FILENO) != 0 && isatty(STDERR_FILENO) != 0;
  const absl::StatusOr<RunResult> result = ReadRunResult(out_dir);
  if (!seen && result.ok() && (code == kExitDone || code == kExitInterrupted)) {
    const std::string table = SummaryTable({*result});
    std::fwrite(table.data(), 1, table.size(), stdout);
  }
  return code;
}

bool SlurmJobHasBegun(const SlurmAllocation& allocation,
                      const std::string& out_dir) {
  return allocation.restarts > 0 &&
         ReadId(BegunPath(out_dir)) == allocation.job_id;
}

absl::Status NoteSlurmJobBegins(const SlurmAllocation& allocation,
                                const std::string& out_dir) {
  SL_RETURN_IF_ERROR(MakeSlurmFolder(out_dir));
  return WriteFileAtomically(BegunPath(out_dir), {allocation.job_id, "\n"});
}

}  // namespace slackline
