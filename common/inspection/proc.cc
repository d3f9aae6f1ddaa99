#include "common/inspection/proc.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace slackline {
namespace {

constexpr size_t kFileBytesMax = 16 << 10;
constexpr size_t kNameBytesMax = 40;

std::string FolderOf(pid_t process) {
  return absl::StrCat("/proc/", static_cast<int64_t>(process));
}
std::string FolderOf(pid_t process, pid_t task) {
  return absl::StrCat(FolderOf(process), "/task/", static_cast<int64_t>(task));
}

// The first bytes; empty if it cannot be read.
std::string ReadProc(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

std::string Printable(absl::string_view text) {
  std::string name(text.substr(0, kNameBytesMax));
  absl::c_replace_if(
      name, [](char c) { return !absl::ascii_isprint(c); }, '?');
  return name;
}

// Calls in which threads wait, by the numbers of this architecture.
struct NamedCall {
  int64_t number;
  const char* name;
};
constexpr NamedCall kCalls[] = {
#ifdef SYS_poll
    {SYS_poll, "poll"},
#endif
#ifdef SYS_select
    {SYS_select, "select"},
#endif
#ifdef SYS_epoll_wait
    {SYS_epoll_wait, "epoll_wait"},
#endif
#ifdef SYS_pause
    {SYS_pause, "pause"},
#endif
#ifdef SYS_open
    {SYS_open, "open"},
#endif
#ifdef SYS_stat
    {SYS_stat, "stat"},
#endif
    {SYS_ppoll, "ppoll"},
    {SYS_pselect6, "pselect6"},
    {SYS_epoll_pwait, "epoll_pwait"},
    {SYS_futex, "futex"},
    {SYS_nanosleep, "nanosleep"},
    {SYS_clock_nanosleep, "clock_nanosleep"},
    {SYS_read, "read"},
    {SYS_pread64, "pread64"},
    {SYS_readv, "readv"},
    {SYS_write, "write"},
    {SYS_pwrite64, "pwrite64"},
    {SYS_writev, "writev"},
    {SYS_fsync, "fsync"},
    {SYS_fdatasync, "fdatasync"},
    {SYS_openat, "openat"},
    {SYS_newfstatat, "newfstatat"},
    {SYS_statx, "statx"},
    {SYS_getdents64, "getdents64"},
    {SYS_flock, "flock"},
    {SYS_fcntl, "fcntl"},
    {SYS_ioctl, "ioctl"},
    {SYS_connect, "connect"},
    {SYS_accept, "accept"},
    {SYS_accept4, "accept4"},
    {SYS_recvfrom, "recvfrom"},
    {SYS_recvmsg, "recvmsg"},
    {SYS_sendto, "sendto"},
    {SYS_sendmsg, "sendmsg"},
    {SYS_wait4, "wait4"},
    {SYS_waitid, "waitid"},
    {SYS_rt_sigtimedwait, "rt_sigtimedwait"},
    {SYS_rt_sigsuspend, "rt_sigsuspend"},
    {SYS_semtimedop, "semtimedop"},
    {SYS_mmap, "mmap"},
    {SYS_munmap, "munmap"},
};

std::string WaitsIn(const std::string& folder) {
  // "NUMBER ARGUMENTS...", "running", or "-1 ..." outside of any call.
  const std::string call = ReadProc(absl::StrCat(folder, "/syscall"));
  int64_t number = -1;
  if (absl::SimpleAtoi(call.substr(0, call.find(' ')), &number) &&
      number >= 0) {
    const auto* const named = absl::c_find_if(
        kCalls,
        [number](const NamedCall& each) { return each.number == number; });
    return named != std::end(kCalls) ? named->name
                                     : absl::StrCat("system call ", number);
  }
  // "0" where the kernel does not say.
  const std::string wait = ReadProc(absl::StrCat(folder, "/wchan"));
  return wait == "0" ? "" : Printable(wait);
}

absl::Duration TicksToTime(absl::string_view ticks) {
  int64_t count = 0;
  if (!absl::SimpleAtoi(ticks, &count)) return absl::ZeroDuration();
  return absl::Seconds(static_cast<double>(count) /
                       static_cast<double>(sysconf(_SC_CLK_TCK)));
}

std::optional<ProcTask> TaskOf(pid_t process, pid_t task) {
  const std::string folder = FolderOf(process, task);
  const std::string stat = ReadProc(absl::StrCat(folder, "/stat"));
  // "ID (NAME) STATE ...": a name may have blanks and brackets.
  const size_t name_begin = stat.find(" (");
  const size_t name_end = stat.rfind(") ");
  if (name_begin == std::string::npos || name_end == std::string::npos ||
      name_end < name_begin + 2) {
    return std::nullopt;
  }
  // The state is the third field of proc(5).
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 2), ' ');
  constexpr size_t kFirst = 3;
  constexpr size_t kUserTime = 14;
  constexpr size_t kKernelTime = 15;
  constexpr size_t kStartTime = 22;
  if (fields.size() <= kStartTime - kFirst || fields[0].size() != 1)
    return std::nullopt;
  timespec now = {};
  (void)clock_gettime(CLOCK_BOOTTIME, &now);
  ProcTask found;
  found.id = task;
  found.name = Printable(absl::string_view(stat).substr(
      name_begin + 2, name_end - name_begin - 2));
  found.state = fields[0][0];
  found.processor_time = TicksToTime(fields[kUserTime - kFirst]) +
                         TicksToTime(fields[kKernelTime - kFirst]);
  found.age = absl::DurationFromTimespec(now) -
              TicksToTime(fields[kStartTime - kFirst]);
  if (found.state != 'R') found.waits_in = WaitsIn(folder);
  return found;
}

// The numbers that name entries of a folder, the smallest first.
std::vector<pid_t> NumbersIn(const std::string& folder, size_t count_max) {
  std::vector<pid_t> numbers;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end;
       !error && entry != end && numbers.size() < count_max;
       entry.increment(error)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(entry->path().filename().native(), &number))
      numbers.push_back(static_cast<pid_t>(number));
  }
  absl::c_sort(numbers);
  return numbers;
}

std::vector<pid_t> ChildrenOf(pid_t process) {
  constexpr size_t kTasksMax = 1024;
  std::vector<pid_t> children;
  const std::string folder = absl::StrCat(FolderOf(process), "/task");
  for (const pid_t task : NumbersIn(folder, kTasksMax)) {
    const std::string text =
        ReadProc(absl::StrCat(FolderOf(process, task), "/children"));
    for (const absl::string_view word :
         absl::StrSplit(text, ' ', absl::SkipWhitespace())) {
      int64_t child = 0;
      if (absl::SimpleAtoi(word, &child))
        children.push_back(static_cast<pid_t>(child));
    }
  }
  absl::c_sort(children);
  return children;
}

}  // namespace

std::string StateText(char state) {
  switch (state) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping";
    case 'D':
      return "in the kernel";
    case 'T':
    case 't':
      return "stopped";
    case 'Z':
    case 'X':
      return "ended";
    default:
      return std::string(1, absl::ascii_isprint(state) ? state : '?');
  }
}

std::vector<ProcTask> TasksOf(pid_t process, size_t tasks_max) {
  std::vector<ProcTask> tasks;
  const std::string folder = absl::StrCat(FolderOf(process), "/task");
  for (const pid_t id : NumbersIn(folder, tasks_max)) {
    // It may have ended.
    if (std::optional<ProcTask> task = TaskOf(process, id))
      tasks.push_back(*std::move(task));
  }
  std::stable_partition(
      tasks.begin(), tasks.end(),
      [process](const ProcTask& task) { return task.id == process; });
  return tasks;
}

std::optional<ProcTask> FirstTaskOf(pid_t process) {
  return TaskOf(process, process);
}

std::optional<SignalSets> SignalsOf(pid_t process) {
  const std::string status =
      ReadProc(absl::StrCat(FolderOf(process, process), "/status"));
  SignalSets sets;
  int found = 0;
  const auto take = [&found](absl::string_view line, absl::string_view name,
                             uint64_t* set) {
    if (absl::ConsumePrefix(&line, name) &&
        absl::SimpleHexAtoi(absl::StripAsciiWhitespace(line), set)) {
      ++found;
    }
  };
  for (const absl::string_view line : absl::StrSplit(status, '\n')) {
    take(line, "SigPnd:", &sets.pending);
    take(line, "SigBlk:", &sets.blocked);
    take(line, "SigCgt:", &sets.caught);
  }
  if (found != 3) return std::nullopt;
  return sets;
}

std::vector<pid_t> DescendantsOf(pid_t process, size_t processes_max) {
  std::vector<pid_t> found;
  const auto add = [&](pid_t parent) {
    for (const pid_t child : ChildrenOf(parent)) {
      if (found.size() < processes_max && absl::c_count(found, child) == 0)
        found.push_back(child);
    }
  };
  add(process);
  for (size_t i = 0; i < found.size(); ++i) add(found[i]);
  return found;
}

}  // namespace slackline
