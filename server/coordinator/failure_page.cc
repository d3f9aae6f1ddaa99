#include "server/coordinator/failure_page.h"

#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/io/atomic_file.h"
#include "common/shortened.h"
#include "proto/view.pb.h"

namespace slackline {
namespace {

constexpr size_t kLineBytesMax = 400;
constexpr size_t kProcessesMax = 2;  // With the end of their logs.
constexpr size_t kTracebacksMax = 2;
constexpr int kStacksMax = 2;
constexpr int kClocksMax = 12;
constexpr char kNoSpace[] = "No space left on device";
constexpr char kTraceback[] = "Traceback (most recent call last)";
constexpr char kNoSlackline[] = "No module named 'slackline'";

bool IsCause(const run::Summary& summary, wire::JobEnd::Cause cause) {
  return summary.cause() == wire::JobEnd::Cause_Name(cause);
}

// What is said of the failure, of which a part may name its cause.
bool Says(const FailureFacts& facts, const char* words) {
  if (absl::StrContains(facts.summary.reason(), words)) return true;
  for (const FailedProcess& process : facts.processes) {
    for (const std::string& line : process.last_lines) {
      if (absl::StrContains(line, words)) return true;
    }
  }
  return false;
}

// "worker 1", of the first process for which this is so; empty: of none.
template <typename Predicate>
std::string NameOf(const FailureFacts& facts, Predicate predicate) {
  const auto found =
      std::find_if(facts.processes.begin(), facts.processes.end(), predicate);
  return found == facts.processes.end() ? "" : found->name;
}

// With what a job begins again by itself, behind what else mends it; empty: its
// config has that.
std::string RestoreAdvice(const FailureFacts& facts, absl::string_view before,
                          absl::string_view behind = "") {
  if (facts.on_server_loss == config::Checkpoint::RESTORE) return "";
  return absl::StrCat(before,
                      "`checkpoint { on_server_loss: RESTORE }` begins again "
                      "by itself from the last checkpoint",
                      behind);
}

std::string LostServerAdvice(const FailureFacts& facts) {
  return absl::StrCat(
      facts.summary.replicas() > 0
          ? "more servers were lost at once than the copies of their shards "
            "can stand in for; a larger `replicas` has the job go on"
          : "shards had no copies; `replicas: 1` has the job go on without a "
            "server",
      RestoreAdvice(facts, ", "),
      facts.summary.has_last_checkpoint()
          ? ""
          : "; the run has no checkpoint, so it begins anew");
}

// Of a failure whose own words are all that is known.
std::string MendWhatIsNamed(const FailureFacts& facts) {
  constexpr char kSentence[] = "mend what the sentence above";
  if (facts.processes.empty()) return absl::StrCat(kSentence, " names");
  return absl::StrCat(kSentence, " and the end of the log of ",
                      facts.processes.front().name, " name");
}

std::string NotFormedAdvice(const FailureFacts& facts) {
  // Nobody is named where nothing was started.
  if (facts.processes.empty() && !facts.summary.about().empty()) {
    return "look on the hosts of those that are named whether they run, and "
           "into their logs; whether they reach the coordinator; raise limits "
           "{ start_timeout_ms: ... } if they only need longer";
  }
  return MendWhatIsNamed(facts);
}

// One sentence. The first rule that fits wins; those that go by what the
// operating system says come before those that go by the cause alone.
std::string Advice(const FailureFacts& facts) {
  const run::Summary& summary = facts.summary;
  if (!facts.what_to_do.empty()) return facts.what_to_do;
  if (Says(facts, kNoSpace)) {
    return absl::StrCat("make room on the disk (`df -h ", facts.folder,
                        "`), or choose another --out or checkpoint { folder }");
  }
  if (summary.traceback_size() > 0) {
    return absl::StrCat("the program of worker ", summary.traceback(0).rank(),
                        " has failed where its traceback says: mend it");
  }
  if (Says(facts, kNoSlackline)) {
    return "the Python of the workers has no slackline: install its wheel for "
           "that Python, or name the folder of the package, by PYTHONPATH=DIR "
           "here, and by --set launch.environment=PYTHONPATH=DIR on other "
           "hosts";
  }
  if (Says(facts, kTraceback)) {
    const std::string name = NameOf(facts, [](const FailedProcess& process) {
      return absl::c_any_of(process.last_lines, [](const std::string& line) {
        return absl::StrContains(line, kTraceback);
      });
    });
    return absl::StrCat(
        name.empty() ? "a program" : absl::StrCat("the program of ", name),
        " has failed where its traceback says: mend it");
  }
  if (const std::string name = NameOf(
          facts, [](const auto& process) { return process.signal == SIGKILL; });
      !name.empty()) {
    return absl::StrCat(
        name,
        " was killed by SIGKILL, as the kernel does when memory runs out "
        "(`dmesg | grep -i 'out of memory'`), or a person or a batch system: "
        "give it more memory, or the job fewer workers here or a smaller data "
        "{ batch_size }");
  }
  const auto lost = absl::c_find_if(
      facts.processes,
      [](const FailedProcess& process) { return process.lost_with_host; });
  if (lost != facts.processes.end()) {
    return absl::StrCat(
        "see whether host ", lost->host,
        " runs and is reached, and who has ended the connection or the agent "
        "there; `replicas: 1` has the job go on without a server",
        RestoreAdvice(facts, ", "));
  }
  if (const std::string name = NameOf(facts,
                                      [](const auto& process) {
                                        return process.signal == 0 &&
                                               process.exit_code == 0;
                                      });
      !name.empty()) {
    return absl::StrCat(
        "the program of ", name,
        " ended well without having joined the job: a script has to call "
        "slackline.join() (docs/manual/python.md), a program in C++ to be a "
        "worker (docs/manual/own-models.md)");
  }
  if (IsCause(summary, wire::JobEnd::DIVERGED)) {
    return "a smaller learning rate or a look at the data of that step; the "
           "losses before it are in metrics.jsonl; train { nonfinite: SKIP } "
           "or "
           "gradient_bound { policy: SKIP } leaves such gradients out";
  }
  if (IsCause(summary, wire::JobEnd::SERVER_LOST) ||
      IsCause(summary, wire::JobEnd::SHARD_LOST) ||
      IsCause(summary, wire::JobEnd::SERVERS_SILENT)) {
    return LostServerAdvice(facts);
  }
  if (IsCause(summary, wire::JobEnd::NOT_FORMED)) return NotFormedAdvice(facts);
  if (IsCause(summary, wire::JobEnd::WORKER_LOST)) {
    return absl::StrCat(
        "find out from its log why the worker went",
        RestoreAdvice(facts, "; ", " if a signal has killed it"));
  }
  if (IsCause(summary, wire::JobEnd::NO_WORKER_LEFT)) {
    return "find out from the logs of the workers why they went; `slackline "
           "run --restart-workers=N` starts each up to N times again";
  }
  if (IsCause(summary, wire::JobEnd::MODELS_DIFFER)) {
    return "workers computed different models: give all of them the same "
           "program, libraries and kind of processor, and the same seeds";
  }
  if (facts.processes.empty() && summary.about().empty())
    return "somebody has stopped the job: nothing is to be mended";
  return MendWhatIsNamed(facts);
}

std::string NextCommand(const FailureFacts& facts) {
  if (!facts.command.empty()) return facts.command;
  // Flags as of slackline_server.
  return absl::StrCat(
      "start all processes again as before, all servers with --new-run",
      facts.summary.has_last_checkpoint()
          ? absl::StrCat(" --resume=", facts.summary.last_checkpoint().folder())
          : "");
}

void AppendLine(const char* title, const std::string& text, std::string* page) {
  absl::StrAppend(page, absl::StrFormat("%-12s", absl::StrCat(title, ":")),
                  text, "\n");
}

void AppendLines(const std::vector<std::string>& lines, std::string* page) {
  const size_t first =
      lines.size() > kFailureLogLines ? lines.size() - kFailureLogLines : 0;
  for (size_t i = first; i < lines.size(); ++i)
    absl::StrAppend(page, "  | ", Shortened(lines[i], kLineBytesMax), "\n");
}

// Where the last workers were that kept others from going on.
void AppendStacks(const run::Summary& summary, std::string* page) {
  const int first = std::max(0, summary.stood_still_size() - kStacksMax);
  for (int i = first; i < summary.stood_still_size(); ++i) {
    const run::StoodStill& worker = summary.stood_still(i);
    absl::StrAppend(
        page, "\nWhere worker ", worker.rank(), " stood still",
        absl::StrFormat(", %.0f s after the job began to run",
                        worker.seconds()),
        worker.where().empty()
            ? ""
            : absl::StrCat(": in ", Shortened(worker.where(), kLineBytesMax)),
        "\n");
    std::vector<std::string> lines =
        absl::StrSplit(worker.text(), '\n', absl::SkipEmpty());
    if (lines.size() > kFailureStackLines) {
      lines.resize(kFailureStackLines);
      lines.push_back("... (summary.json has more)");
    }
    for (const std::string& line : lines)
      absl::StrAppend(page, "  | ", Shortened(line, kLineBytesMax), "\n");
  }
}

std::string ClocksText(const run::Summary& summary) {
  std::vector<std::string> clocks;
  for (const run::WorkerSummary& worker : summary.worker()) {
    if (static_cast<int>(clocks.size()) == kClocksMax) {
      clocks.push_back(
          absl::StrCat("and ", summary.worker_size() - kClocksMax, " more"));
      break;
    }
    clocks.push_back(
        absl::StrCat("worker ", worker.rank(), " ", worker.steps()));
  }
  if (clocks.empty()) return absl::StrCat("step ", summary.steps());
  return absl::StrCat(absl::StrJoin(clocks, ", "), " (steps done)");
}

}  // namespace

bool HasFailed(const run::Summary& summary) {
  return summary.state() == wire::JobState_Name(wire::FAILED) &&
         !IsCause(summary, wire::JobEnd::SUSPENDED);
}

std::string FailurePage(const FailureFacts& facts) {
  const run::Summary& summary = facts.summary;
  std::string page =
      absl::StrCat("The job ", summary.job(), " has failed.\n\n");
  AppendLine("what",
             absl::StrCat(summary.cause(), ": ",
                          summary.reason().empty() ? "nobody has said why"
                                                   : summary.reason()),
             &page);
  std::set<std::string> seen;
  for (const FailedProcess& process : facts.processes) {
    seen.insert(process.name);
    AppendLine("who",
               absl::StrCat(process.name, " (pid ", process.pid, " on ",
                            process.host, ") ", process.how),
               &page);
  }
  for (const std::string& name : summary.about()) {
    if (seen.insert(name).second) AppendLine("who", name, &page);
  }
  for (const run::Traceback& traceback : summary.traceback()) {
    const std::string name = absl::StrCat("worker ", traceback.rank());
    if (seen.insert(name).second) AppendLine("who", name, &page);
  }
  if (seen.empty())
    AppendLine("who", "no process is known to be at fault", &page);
  AppendLine("when",
             absl::StrFormat("%s, after %.1f s of training",
                             summary.ended_at().empty() ? "time not known"
                                                        : summary.ended_at(),
                             summary.wall_seconds()),
             &page);
  AppendLine("clocks", ClocksText(summary), &page);
  AppendLine("checkpoint",
             summary.has_last_checkpoint()
                 ? absl::StrCat("step ", summary.last_checkpoint().clock(),
                                " in ", summary.last_checkpoint().folder())
                 : "none",
             &page);
  absl::StrAppend(&page, "\nWhat to do: ", Advice(facts),
                  "\nThen:       ", NextCommand(facts), "\n");
  for (size_t i = 0; i < std::min(facts.processes.size(), kProcessesMax); ++i) {
    const FailedProcess& process = facts.processes[i];
    absl::StrAppend(&page, "\nThe end of ", process.log_path, ":\n");
    AppendLines(process.last_lines, &page);
    if (process.last_lines.empty()) absl::StrAppend(&page, "  it is empty\n");
  }
  for (size_t i = 0; i < std::min(static_cast<size_t>(summary.traceback_size()),
                                  kTracebacksMax);
       ++i) {
    const run::Traceback& traceback = summary.traceback(static_cast<int>(i));
    absl::StrAppend(&page, "\nWhere worker ", traceback.rank(), " failed:\n");
    AppendLines(absl::StrSplit(traceback.text(), '\n', absl::SkipEmpty()),
                &page);
  }
  AppendStacks(summary, &page);
  if (facts.command.empty()) {
    absl::StrAppend(&page,
                    "\nThe log of each process is where it was started, on its "
                    "standard error.\n");
  }
  return page;
}

std::string FailureInShort(const FailureFacts& facts) {
  return absl::StrCat("what to do: ", Advice(facts),
                      "\nthen: ", NextCommand(facts),
                      "\nall that is known: ", FailurePath(facts.folder));
}

std::string FailurePath(const std::string& folder) {
  return (std::filesystem::path(folder) / kFailureFile).string();
}

absl::Status WriteFailurePage(const FailureFacts& facts) {
  const std::string page = FailurePage(facts);
  const absl::string_view part(page);
  return WriteFileAtomically(FailurePath(facts.folder),
                             absl::MakeConstSpan(&part, 1));
}

}  // namespace slackline
