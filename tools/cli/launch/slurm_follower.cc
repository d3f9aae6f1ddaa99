#include "tools/cli/launch/slurm_follower.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace slackline {
namespace {

constexpr size_t kFields = 6;
// Of what Slurm says, for a line.
constexpr size_t kTextBytesMax = 200;
// Within this the script has begun, and a shared folder shows its output.
constexpr absl::Duration kOutputWithin = absl::Seconds(30);
constexpr absl::Duration kSoonFor = absl::Seconds(20);
constexpr absl::Duration kSoon = absl::Seconds(1);
constexpr absl::Duration kOften = absl::Seconds(5);
constexpr absl::Duration kOftenFor = absl::Minutes(10);
constexpr absl::Duration kSeldom = absl::Seconds(15);

// "None" and "N/A" are squeue's words for nothing.
std::string Known(const std::string& text) {
  return text == "None" || text == "N/A" || text == "(null)" ? "" : text;
}

bool IsOneOf(const std::string& text,
             std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const char* word) { return text == word; });
}

// What a reason means where its name does not say what to do.
std::string MeaningOf(const std::string& reason, int restarts) {
  if (reason == "BeginTime" && restarts > 0)
    return "Slurm lets a job that was queued again wait for two minutes";
  // The first as in "launch failed requeued held".
  if (absl::EndsWith(reason, " held") ||
      IsOneOf(reason,
              {"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints",
               "InvalidAccount", "InvalidQOS", "JobHeldUser", "JobHeldAdmin",
               "DependencyNeverSatisfied"}))
    return "it does not begin as it is";
  if (absl::StrContains(reason, "MaxCpu") ||
      absl::StrContains(reason, "MaxNode") ||
      absl::StrContains(reason, "MaxGRES"))
    return "it asks for more than a limit of the account or QOS";
  return "";
}

}  // namespace

absl::StatusOr<std::optional<SlurmJob>> ParseSqueue(absl::string_view output) {
  const absl::string_view line = absl::StripAsciiWhitespace(output);
  if (line.empty()) return std::nullopt;
  std::vector<std::string> fields = absl::StrSplit(line, '|');
  SlurmJob job;
  if (fields.size() != kFields + 1 || !fields.back().empty() ||
      fields[0].empty() || !absl::SimpleAtoi(fields[2], &job.wait_status) ||
      !absl::SimpleAtoi(fields[3], &job.restarts)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "squeue has answered '", line.substr(0, kTextBytesMax),
        "'; a line for the format ", kSqueueFormat, " is required"));
  }
  for (std::string& field : fields)
    field.resize(std::min(field.size(), kTextBytesMax));
  job.state = fields[0];
  job.reason = fields[1];
  job.nodes = fields[4];
  job.start = fields[5];
  return job;
}

bool SlurmJobWaits(const SlurmJob& job) {
  return IsOneOf(job.state,
                 {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
                  "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD"});
}

bool SlurmJobRuns(const SlurmJob& job) {
  return IsOneOf(job.state, {"RUNNING", "SUSPENDED", "RESIZING"});
}

bool SlurmJobIsOver(const SlurmJob& job) {
  return IsOneOf(job.state, {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT",
                             "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
                             "OUT_OF_MEMORY", "REVOKED"});
}

int ExitCodeOf(const SlurmJob& job) {
  if (WIFEXITED(job.wait_status) && WEXITSTATUS(job.wait_status) != 0)
    return WEXITSTATUS(job.wait_status);
  return job.state == "COMPLETED" && job.wait_status == 0 ? 0 : 1;
}

std::string SlurmFollower::WaitingLine() const {
  if (!job_.has_value() || !SlurmJobWaits(*job_)) return "";
  std::string text = absl::StrCat("Slurm job ", id_, " waits for its turn");
  const std::string reason = Known(job_->reason);
  if (!reason.empty()) absl::StrAppend(&text, ": ", reason);
  if (const std::string meaning = MeaningOf(reason, job_->restarts);
      !meaning.empty())
    absl::StrAppend(&text, " (", meaning, ")");
  if (const std::string start = Known(job_->start); !start.empty())
    absl::StrAppend(&text, "; expected to begin at ", start);
  return text;
}

SlurmFollower::Effects SlurmFollower::OnLook(const std::optional<SlurmJob>& job,
                                             bool has_output, absl::Time now) {
  Effects effects;
  has_output_ = has_output;
  if (!job.has_value()) {
    // Slurm forgets a job some minutes after its end.
    effects.over_unseen = true;
    return effects;
  }
  const std::optional<SlurmJob> before = std::exchange(job_, job);
  const bool again = before.has_value() && job->restarts > before->restarts;
  const bool other_state =
      !before.has_value() || before->state != job->state || again;
  if (other_state) changed_ = now;
  if (again) {
    interrupts_sent_ = 0;
    effects.lines.push_back(
        absl::StrCat("Slurm has queued job ", id_,
                     " again; it goes on when its turn comes"));
  }
  if (SlurmJobIsOver(*job)) {
    effects.exit_code = ExitCodeOf(*job);
    if (job->state != "COMPLETED" &&
        !(job->state == "FAILED" && *effects.exit_code != 0 && has_output_)) {
      const std::string reason = Known(job->reason);
      effects.lines.push_back(
          absl::StrCat("Slurm has job ", id_, " as ", job->state,
                       reason.empty() ? "" : absl::StrCat(" (", reason, ")")));
    }
    if (!has_output_) {
      effects.lines.push_back(
          "its output is not seen from here: the folder of the run has to be "
          "one that this machine and the nodes share; choose it by --out");
    }
    return effects;
  }
  if (SlurmJobWaits(*job)) {
    runs_since_ = absl::InfiniteFuture();
    if (other_state || before->reason != job->reason)
      effects.lines.push_back(WaitingLine());
    if (interrupts_ > 0) effects.cancel_waiting = true;
    return effects;
  }
  if (!SlurmJobRuns(*job)) return effects;  // It is about to end.
  if (other_state) {
    if (runs_since_ == absl::InfiniteFuture()) runs_since_ = now;
    effects.lines.push_back(absl::StrCat(
        "Slurm job ", id_, job->state == "RUNNING" ? " runs" : " is suspended",
        " on ", job->nodes));
  }
  if (!has_output_ && !said_not_shared_ && now - runs_since_ > kOutputWithin) {
    said_not_shared_ = true;
    effects.lines.push_back(absl::StrCat(
        "the folder of the run is not shared with ", job->nodes,
        ": no progress can be shown here, only how Slurm has the job"));
  }
  // One that was to be cancelled, and has begun meanwhile.
  effects.interrupts = std::min(interrupts_, 2) - interrupts_sent_;
  interrupts_sent_ += effects.interrupts;
  return effects;
}

SlurmFollower::Effects SlurmFollower::OnInterrupt(absl::Time now) {
  Effects effects;
  ++interrupts_;
  changed_ = now;
  if (!Runs()) {
    effects.lines.push_back(absl::StrCat("cancelling Slurm job ", id_));
    effects.cancel_waiting = interrupts_ == 1;
    effects.cancel = interrupts_ > 1;
    return effects;
  }
  if (interrupts_ > 2) {
    effects.lines.push_back(absl::StrCat("killing Slurm job ", id_));
    effects.cancel = true;
    return effects;
  }
  effects.interrupts = interrupts_ - interrupts_sent_;
  interrupts_sent_ = interrupts_;
  return effects;
}

absl::Time SlurmFollower::NextLook(absl::Time last) const {
  const absl::Duration since = last - changed_;
  return last + (since < kSoonFor    ? kSoon
                 : since < kOftenFor ? kOften
                                     : kSeldom);
}

}  // namespace slackline
