// The logs of a job's processes: where they are, and what one says about the
// end of its process.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/cli/members/supervisor.h"

namespace slackline {

// The end of a file, at most `bytes_max`, from the start of a line on. Empty if
// it cannot be read.
std::string ReadTail(const std::string& path, size_t bytes_max = 64 << 10);

// "logs/worker-2.old.log" of "logs/worker-2.log": where a log goes that has
// become too long.
std::string OldLogOf(const std::string& log);
// As ReadTail(), of a log that may have been put aside meanwhile.
std::string ReadLogTail(const std::string& path, size_t bytes_max = 64 << 10);
// Puts a log aside that its process appends to: a copy is made, in place of the
// one before, and the log begins anew. What is written between the two, a
// matter of microseconds, is lost. Unavailable: it cannot be, and stays.
absl::Status PutLogAside(const std::string& path);

// The last `count` lines that are not blank, oldest first.
std::vector<std::string> LastLines(absl::string_view text, int count);

// The words of the last line that looks like an error, without what stands
// before them (time, level). A line in which a coordinator says why the job
// has failed wins over all others. Empty if there is none.
std::string ErrorLine(absl::string_view text);

// A file for each start of each process, in the folder logs/ of a run. What is
// there of an earlier run stays.
class MemberLogs {
 public:
  explicit MemberLogs(std::string out_dir) : out_dir_(std::move(out_dir)) {}
  absl::Status MakeFolder() const;
  // The next file of the process: the first whose name is free.
  void Begin(const JobProcess& member);
  // "logs/worker-2.log"; of a process that was started again
  // "logs/worker-2.3.log". Of one whose Begin() was called.
  std::string NameOf(const JobProcess& member) const;
  std::string PathOf(const JobProcess& member) const;

 private:
  const std::string out_dir_;
  std::map<JobProcess, int> starts_;
};

}  // namespace slackline
