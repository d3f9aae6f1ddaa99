#include "common/inspection/stack_taker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/inspection/proc.h"
#include "common/shortened.h"
#include "common/thread_name.h"

namespace slackline {
namespace {

constexpr size_t kTasksMax = 256;
constexpr size_t kProcessesMax = 64;
constexpr size_t kDumpBytesMax = 1 << 20;
constexpr size_t kFramesMax = 100;      // Of a main thread.
constexpr size_t kOtherFramesMax = 30;  // Of each other one.
constexpr absl::Duration kLookEvery = absl::Milliseconds(2);

using Handler = void (*)(int);

// nullptr: as the kernel does by itself, or it cannot be known.
Handler HandlerOf(int signal) {
  struct sigaction action = {};
  if (sigaction(signal, nullptr, &action) != 0) return nullptr;
  // One place for both kinds of handler.
  return action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN
             ? nullptr
             : action.sa_handler;
}

std::string MemfdPath(pid_t process, int descriptor) {
  return absl::StrCat("/proc/", static_cast<int64_t>(process), "/fd/",
                      descriptor);
}

void Pause() {
  (void)poll(nullptr, 0,
             static_cast<int>(absl::ToInt64Milliseconds(kLookEvery)));
}

std::string ReadDump(int descriptor) {
  std::string text(kDumpBytesMax, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t more = pread(descriptor, text.data() + size,
                               text.size() - size, static_cast<off_t>(size));
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) break;
    size += static_cast<size_t>(more);
  }
  text.resize(size);
  return text;
}

std::string TaskLine(const ProcTask& task) {
  return absl::StrFormat(
      "  %-8d %-16s %-13s %9.2f s%s\n", task.id, task.name,
      StateText(task.state), absl::ToDoubleSeconds(task.processor_time),
      task.waits_in.empty() ? "" : absl::StrCat("  in ", task.waits_in));
}

// A table of all threads.
std::string TasksText(pid_t process) {
  const std::vector<ProcTask> tasks = TasksOf(process, kTasksMax);
  if (tasks.empty()) return "threads: not known, there is no /proc\n";
  std::string text =
      "threads (number, name, state, processor time, what they wait in):\n";
  for (const ProcTask& task : tasks) absl::StrAppend(&text, TaskLine(task));
  if (tasks.size() == kTasksMax)
    absl::StrAppend(&text, "  and perhaps others\n");
  return text;
}

// "process 4711 (ffmpeg), sleeping, in futex"
std::string ProcessText(pid_t process, const ProcTask& task) {
  return absl::StrCat("process ", static_cast<int64_t>(process), " (",
                      task.name, "), ", StateText(task.state),
                      task.waits_in.empty() ? "" : ", in ", task.waits_in);
}

// A comma before a place that is known.
std::string AtPlace(const std::string& place) {
  return place.empty() ? "" : absl::StrCat(", in ", place);
}

}  // namespace

std::optional<int> FreeSignal() {
  // The largest ones are taken by tools like valgrind.
  for (int signal = SIGRTMAX - 3; signal > SIGRTMIN; --signal) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) == 0 &&
        action.sa_handler == SIG_DFL) {
      return signal;
    }
  }
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<StackTaker>> StackTaker::OfPython(
    const TimeSource& time, const PythonStacks& python,
    absl::Duration time_max) {
  auto taker = std::make_unique<StackTaker>(time, time_max);
  Python& known = taker->python_.emplace();
  known.stacks = python;
  known.handler = HandlerOf(python.signal);
  struct stat memfd = {};
  if (known.handler == nullptr || fstat(python.descriptor, &memfd) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stacks of Python: signal ", python.signal,
        " has no handler, or descriptor ", python.descriptor, " is no file"));
  }
  known.device = memfd.st_dev;
  known.file = memfd.st_ino;
  return taker;
}

bool StackTaker::HasMemfd(pid_t process) const {
  struct stat memfd = {};
  return stat(MemfdPath(process, python_->stacks.descriptor).c_str(), &memfd) ==
             0 &&
         memfd.st_dev == python_->device && memfd.st_ino == python_->file;
}

std::string StackTaker::WhyUnreached(pid_t process) const {
  const int signal = python_->stacks.signal;
  const std::optional<ProcTask> task = FirstTaskOf(process);
  const std::optional<SignalSets> signals = SignalsOf(process);
  if (!task.has_value() || !signals.has_value() || task->state == 'Z' ||
      task->state == 'X') {
    return "it has ended";
  }
  if (process == getpid()) {
    if (HandlerOf(signal) != python_->handler)
      return "the script has given the signal another handler";
  } else {
    struct stat folder = {};
    const std::string path =
        absl::StrCat("/proc/", static_cast<int64_t>(process));
    if (stat(path.c_str(), &folder) != 0 || folder.st_uid != geteuid())
      return "it is another user's";
    if (!signals->IsCaught(signal))
      return "it was started anew (spawn, forkserver or another program)";
    if (task->age < python_->stacks.youngest)
      return "it has only just been started";
    if (signals->IsBlocked(signal)) return "it blocks the signal";
  }
  if (!HasMemfd(process)) return "it has closed the file for its stacks";
  if (signals->IsPending(signal)) return "it has not taken the last question";
  if (task->state == 'T' || task->state == 't') return "it is stopped";
  return "";
}

absl::StatusOr<PythonDump> StackTaker::DumpOf(pid_t process,
                                              absl::Time until) const {
  if (const std::string why = WhyUnreached(process); !why.empty())
    return absl::UnavailableError(why);
  const int signal = python_->stacks.signal;
  const int descriptor = python_->stacks.descriptor;
  if (ftruncate(descriptor, 0) != 0 ||
      syscall(SYS_tgkill, process, process, signal) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  until = std::min(until, time_.Now() + time_max_ / 2);
  // Python is at it from when the signal is no longer pending until it is no
  // longer blocked, and in between it is neither for a moment: so two looks
  // have to find the same.
  off_t size = -1;
  while (true) {
    Pause();
    struct stat memfd = {};
    const std::optional<SignalSets> signals = SignalsOf(process);
    if (!signals.has_value() || fstat(descriptor, &memfd) != 0)
      return absl::UnavailableError("it has ended meanwhile");
    const bool rests = !signals->IsPending(signal) &&
                       !signals->IsBlocked(signal) && memfd.st_size > 0;
    if (rests && memfd.st_size == size) break;
    size = rests ? memfd.st_size : -1;
    if (time_.Now() < until) continue;
    if (memfd.st_size > 0) break;
    return absl::UnavailableError(
        signals->IsPending(signal)
            ? "its main thread has not taken the signal: it waits in the "
              "kernel, blocks the signal, or gets no processor"
            : "its faulthandler has written nothing: another one may be "
              "registered");
  }
  return ParsePythonDump(ReadDump(descriptor));
}

StackTaker::Child StackTaker::LookAt(pid_t process, absl::Time until) const {
  const std::optional<ProcTask> task = FirstTaskOf(process);
  if (!task.has_value()) return {};
  const std::string who = ProcessText(process, *task);
  if (!python_.has_value())
    return {.text = absl::StrCat(who, "\n"), .place = ""};
  const absl::StatusOr<PythonDump> dump =
      time_.Now() < until
          ? DumpOf(process, until)
          : absl::UnavailableError("there was no time left to ask it");
  if (!dump.ok()) {
    return {.text = absl::StrCat(who, ": no stack, ", dump.status().message(),
                                 "\n"),
            .place = ""};
  }
  const PythonThread* const main = MainThreadOf(*dump);
  if (main == nullptr)
    return {.text = absl::StrCat(who, ": no stack of its main thread\n"),
            .place = ""};
  const bool idle = IsIdleLoader(*main);
  const std::string place =
      idle ? "" : PlaceOf(*main, python_->stacks.libraries);
  return {
      .text = absl::StrCat(IsLoader(*main) ? "loader " : "", who,
                           idle ? ", waits for its next batch" : AtPlace(place),
                           ":\n", FramesText(*main, kOtherFramesMax)),
      .place = IsLoader(*main) ? place : ""};
}

wire::Stacks StackTaker::Take() {
  const MutexLock lock(taking_);
  const absl::Time until = time_.Now() + time_max_;
  const pid_t self = getpid();
  std::string main_text;
  std::string others_text;
  std::string where;
  bool waits_for_loader = false;
  if (python_.has_value()) {
    const absl::StatusOr<PythonDump> dump = DumpOf(self, until);
    const PythonThread* const main = dump.ok() ? MainThreadOf(*dump) : nullptr;
    if (main != nullptr) {
      where = PlaceOf(*main, python_->stacks.libraries);
      waits_for_loader = WaitsForLoader(*main);
      main_text = absl::StrCat("main thread", AtPlace(where), ":\n",
                               FramesText(*main, kFramesMax));
    } else {
      main_text = absl::StrCat(
          "main thread: no stack, ",
          dump.ok() ? "Python shows 100 threads at most, and it is not among "
                      "them"
                    : dump.status().message(),
          "\n");
    }
    if (dump.ok()) {
      for (const PythonThread& thread : dump->threads) {
        if (&thread == main) continue;
        const std::string place = PlaceOf(thread, python_->stacks.libraries);
        absl::StrAppend(&others_text, "another thread of Python",
                        AtPlace(place), ":\n",
                        FramesText(thread, kOtherFramesMax));
      }
      if (dump->more_threads)
        absl::StrAppend(&others_text, "and others, which Python leaves out\n");
    }
  }
  std::string children_text;
  std::string loads_at;
  const std::vector<pid_t> children = DescendantsOf(self, kProcessesMax);
  for (const pid_t process : children) {
    Child child = LookAt(process, until);
    absl::StrAppend(&children_text, child.text);
    if (loads_at.empty()) loads_at = std::move(child.place);
  }
  if (children.size() == kProcessesMax)
    absl::StrAppend(&children_text, "and perhaps other processes\n");
  if (waits_for_loader) {
    where = !loads_at.empty()
                ? absl::StrCat("a loader process: ", loads_at)
                : absl::StrCat(where.empty() ? "PyTorch's DataLoader" : where,
                               ", waiting for its loader processes");
  }
  wire::Stacks stacks;
  stacks.set_where(where);
  stacks.set_text(Shortened(
      absl::StrCat(main_text, children_text, TasksText(self), others_text),
      kTextBytesMax - 3));
  return stacks;
}

std::function<wire::Stacks()> StacksBy(std::shared_ptr<StackTaker> taker) {
  return [taker = std::move(taker)] {
    NameThisThread("stacks");
    return taker->Take();
  };
}

}  // namespace slackline
