#include "tools/cli/launch/slurm_tools.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/status.h"
#include "tools/cli/members/logs.h"
#include "tools/cli/members/program_output.h"
#include "tools/cli/process.h"

namespace slackline {
namespace {

constexpr char kJobIdVariable[] = "SLURM_JOB_ID";
constexpr char kRestartsVariable[] = "SLURM_RESTART_COUNT";
constexpr size_t kOutputBytesMax = 1 << 20;
constexpr size_t kIdDigitsMax = 20;
// A controller that is busy makes them wait for a minute.
constexpr absl::Duration kToolMax = absl::Minutes(2);

bool IsId(absl::string_view text) {
  return !text.empty() && text.size() <= kIdDigitsMax &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

}  // namespace

SlurmAllocation AllocationOf(
    const std::map<std::string, std::string>& environment) {
  SlurmAllocation allocation;
  const auto id = environment.find(kJobIdVariable);
  if (id == environment.end() || !IsId(id->second)) return allocation;
  allocation.job_id = id->second;
  const auto restarts = environment.find(kRestartsVariable);
  if (restarts != environment.end() &&
      !absl::SimpleAtoi(restarts->second, &allocation.restarts)) {
    allocation.restarts = 0;
  }
  return allocation;
}

SlurmAllocation AllocationHere() {
  std::map<std::string, std::string> environment;
  for (const char* const* entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    const std::string name(text.substr(0, equals));
    if (name == kJobIdVariable || name == kRestartsVariable)
      environment[name] = std::string(text.substr(equals + 1));
  }
  return AllocationOf(environment);
}

absl::StatusOr<std::string> RunSlurmTool(
    const std::vector<std::string>& words) {
  const absl::StatusOr<std::string> program = FindProgram(words[0]);
  if (!program.ok()) {
    return absl::NotFoundError(absl::StrCat(
        "--on slurm: ", program.status().message(),
        ": Slurm's programs are not found on this machine; run this on a login "
        "node of the cluster, load Slurm's module, or put the folder of ",
        words[0], " into PATH"));
  }
  absl::StatusOr<ProgramOutput> said = OutputOf(
      {.command = words, .time_max = kToolMax, .bytes_max = kOutputBytesMax});
  if (!said.ok()) return Annotate(said.status(), words[0]);
  if (said->status.ok()) return std::move(said->output);
  return absl::FailedPreconditionError(absl::StrCat(
      words[0], ": ", absl::StrJoin(LastLines(said->errors, 4), "; ")));
}

absl::StatusOr<std::string> SubmitToSlurm(const std::string& script) {
  SL_ASSIGN_OR_RETURN(const std::string output,
                      RunSlurmTool({"sbatch", "--parsable", script}));
  const std::string line(absl::StripAsciiWhitespace(output));
  // "12", or "12;cluster".
  const std::string id = line.substr(0, line.find(';'));
  if (IsId(id)) return id;
  return absl::InternalError(absl::StrCat(
      "sbatch has answered '", line.substr(0, 80),
      "', which has no id of a job; `squeue --me` shows whether it is queued"));
}

absl::StatusOr<std::optional<SlurmJob>> LookAtSlurmJob(const std::string& id) {
  const absl::StatusOr<std::string> output = RunSlurmTool(
      {"squeue", "--noheader", "--states=all", absl::StrCat("--jobs=", id),
       absl::StrCat("--Format=", kSqueueFormat)});
  if (!output.ok()) {
    if (absl::StrContains(output.status().message(), "Invalid job id"))
      return std::nullopt;
    return output.status();
  }
  return ParseSqueue(*output);
}

absl::Status InterruptSlurmJob(const std::string& id) {
  return RunSlurmTool({"scancel", "--batch", "--signal=INT", id}).status();
}

absl::Status CancelSlurmJob(const std::string& id, bool waiting) {
  std::vector<std::string> words = {"scancel"};
  if (waiting) words.emplace_back("--state=PENDING");
  words.push_back(id);
  return RunSlurmTool(words).status();
}

std::string QueueAgain(const SlurmAllocation& allocation) {
  const absl::StatusOr<std::optional<SlurmJob>> job =
      LookAtSlurmJob(allocation.job_id);
  if (job.ok() && job->has_value() && !SlurmJobRuns(**job)) {
    return absl::StrCat("Slurm itself ends job ", allocation.job_id, " (",
                        (*job)->state,
                        "), and says whether it is queued again");
  }
  const absl::Status again =
      RunSlurmTool({"scontrol", "requeue", allocation.job_id}).status();
  if (again.ok()) {
    return absl::StrCat("Slurm queues job ", allocation.job_id,
                        " again, and it goes on when its turn comes");
  }
  return absl::StrCat("Slurm does not queue job ", allocation.job_id,
                      " again: ", again.message());
}

}  // namespace slackline
