// failure.txt: the page that a failed run leaves in its folder. It says what
// has happened, to whom, where and when, how far the job was, what to do, and
// which command to type.
//
// One rule: the page belongs to summary.json. Whoever writes the summary of a
// failed run writes the page with what the summary knows (WriteSummaryFile()),
// and whoever removes or moves one removes or moves the other. `slackline run`,
// once no process is left, writes the page again as a whole, with exits and
// logs, which it alone knows. Pure functions, but for WriteFailurePage().
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/cluster.pb.h"
#include "proto/run.pb.h"

namespace slackline {

inline constexpr char kFailureFile[] = "failure.txt";
// Longer logs and tracebacks are shortened, so that the page stays one.
inline constexpr int kFailureLogLines = 20;
// Longer stacks, too.
inline constexpr int kFailureStackLines = 60;

// A process that the failure is about, as `slackline run` has seen it.
struct FailedProcess {
  std::string name;  // "worker 2", as in Summary.about.
  std::string host;
  int64_t pid = 0;
  int exit_code = 0;  // Meaningful if `signal` is 0.
  int signal = 0;     // The signal that has ended it.
  // Neither is known of a process that went with its host or its connection.
  bool lost_with_host = false;
  std::string how;  // "exited with code 1"
  std::string log_path;
  std::vector<std::string> last_lines;  // Of the log, oldest first.
};

struct FailureFacts {
  std::string folder;    // Of the run.
  run::Summary summary;  // Its reason is the sentence that the page says.
  // The processes that have failed, in the order of their ends. Empty: nothing
  // is known beyond the summary.
  std::vector<FailedProcess> processes = {};
  // What one types next. Empty: the processes were started by hand.
  std::string command = {};
  // What the config's checkpoint block says; the page does not advise it then.
  config::Checkpoint::Loss on_server_loss = config::Checkpoint::FAIL;
  // The advice in place of what the rules of this page advise; empty: theirs.
  std::string what_to_do = {};
};

// A run that is suspended has not failed.
bool HasFailed(const run::Summary& summary);
// The whole page; lines end in "\n".
std::string FailurePage(const FailureFacts& facts);
// What the terminal says after the sentence of why: what to do, the command,
// and where the page is.
std::string FailureInShort(const FailureFacts& facts);

std::string FailurePath(const std::string& folder);
// Replaces what is there, whole or not at all.
absl::Status WriteFailurePage(const FailureFacts& facts);

}  // namespace slackline
