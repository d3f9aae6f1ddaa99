#include "tools/cli/run/failure.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/process/join_request.h"
#include "tools/cli/members/logs.h"

namespace slackline {
namespace {

FailedProcess ProcessOf(const LoggedExit& logged,
                        const std::string& this_host) {
  const MemberExit& exit = logged.exit;
  return {
      .name = exit.member.ToString(),
      .host = exit.host.empty() ? this_host : exit.host,
      .pid = exit.pid,
      .exit_code = exit.status.code,
      .signal = exit.lost_with_host ? 0 : exit.status.signal,
      .lost_with_host = exit.lost_with_host,
      .how = exit.lost_with_host
                 ? absl::StrCat("was lost with the connection to its host: ",
                                exit.error_line)
                 : exit.status.ToString(),
      .log_path = logged.log_path,
      .last_lines = LastLines(ReadLogTail(logged.log_path), kFailureLogLines)};
}

}  // namespace

std::vector<LoggedExit> ExitsAtFault(const run::Summary& summary,
                                     const std::vector<LoggedExit>& exits,
                                     const std::vector<MemberExit>& dead) {
  std::set<std::string> named(summary.about().begin(), summary.about().end());
  for (const run::Traceback& traceback : summary.traceback())
    named.insert(
        JobProcess{.worker = true, .index = traceback.rank()}.ToString());
  std::vector<LoggedExit> first;
  std::vector<LoggedExit> then;
  for (size_t i = 0; i < exits.size(); ++i) {
    const MemberExit& exit = exits[i].exit;
    const bool again =
        std::any_of(exits.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                    exits.end(), [&](const LoggedExit& later) {
                      return later.exit.member == exit.member;
                    });
    if (again) continue;
    if (named.count(exit.member.ToString()) > 0) {
      first.push_back(exits[i]);
    } else if (absl::c_any_of(dead, [&](const MemberExit& each) {
                 return each.pid == exit.pid && each.host == exit.host &&
                        (each.status.signal != 0 ||
                         each.pid == dead.front().pid);
               })) {
      then.push_back(exits[i]);
    }
  }
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

std::string LeaveFailurePage(FailureFacts facts,
                             const std::vector<LoggedExit>& at_fault) {
  const std::string host = OwnHostName();
  for (const LoggedExit& logged : at_fault)
    facts.processes.push_back(ProcessOf(logged, host));
  const absl::Status written = WriteFailurePage(facts);
  const std::string text = FailureInShort(facts);
  if (written.ok()) return text;
  return absl::StrCat(text, " (it could not be written: ", written.message(),
                      ")");
}

}  // namespace slackline
