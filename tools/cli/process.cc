#include "tools/cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/process/default_signals.h"
#include "common/status.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

absl::Status SystemError(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Runs in the child: only calls that are safe after fork() in a process with
// threads. `output` and `error_output` may be -1. Ends with exec, or writes
// errno to `report`.
[[noreturn]] void BecomeProgram(char* const* arguments,
                                char* const* environment, bool detached,
                                pid_t parent, int input, int output,
                                int error_output, int report) {
  if (detached) {
    setsid();
  } else {
    setpgid(0, 0);
  }
  UseDefaultSignals();
  if (!detached) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // It died before the line above.
  }
  const int from = input >= 0 ? input : open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (from >= 0 && (from == 0 ? fcntl(0, F_SETFD, 0) : dup2(from, 0)) >= 0 &&
      (output < 0 || dup2(output, 1) >= 0) &&
      (error_output < 0 || dup2(error_output, 2) >= 0)) {
    execve(arguments[0], arguments, environment);
  }
  const int error = errno;
  // Nobody is left to be told if this fails, too.
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof(error));
  _exit(127);
}

// As exec takes them; `texts` outlive the result.
std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

// "NAME=value" of this program and, first, of `added`.
std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::string>& added) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : added) {
    texts.push_back(absl::StrCat(name, "=", value));
  }
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (added.count(text.substr(0, text.find('='))) == 0) texts.push_back(text);
  }
  return texts;
}

// 0 if it can be executed, else why not.
int ProgramError(const std::string& path) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return errno;
  if (S_ISDIR(file.st_mode)) return EISDIR;
  return access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

absl::StatusOr<Descriptor> OpenLog(const std::string& path) {
  Descriptor log(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (log.valid()) return log;
  return SystemError(absl::StrCat("log file ", path, " cannot be opened"),
                     errno);
}

absl::StatusOr<Pipe> OpenPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  return Pipe{.read = Descriptor(ends[0]), .write = Descriptor(ends[1])};
}

int64_t OutOfMemoryKills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

std::string ExitStatus::ToString() const {
  if (signal == 0) return absl::StrCat("exited with code ", code);
  const char* const name = sigabbrev_np(signal);
  const std::string text =
      absl::StrCat("was killed by signal ", signal,
                   name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
  if (!maybe_out_of_memory) return text;
  return absl::StrCat(text,
                      ", probably because the machine is out of memory: "
                      "the kernel has killed a process for that meanwhile, "
                      "and this one had ",
                      BytesText(static_cast<double>(memory_bytes_max)));
}

absl::StatusOr<std::string> FindProgram(const std::string& name) {
  std::vector<std::string> paths = {name};
  if (!absl::StrContains(name, '/')) {
    // The system's variable, with the system's meaning.
    const char* const folders = std::getenv("PATH");
    paths.clear();
    for (const absl::string_view folder :
         absl::StrSplit(folders == nullptr ? "/usr/bin:/bin" : folders, ':')) {
      paths.push_back(absl::StrCat(folder.empty() ? "." : folder, "/", name));
    }
  }
  int error = ENOENT;
  for (const std::string& path : paths) {
    const int failed = ProgramError(path);
    if (failed == 0) return path;
    if (failed != ENOENT && failed != ENOTDIR) error = failed;
  }
  if (error == EACCES) {
    return absl::PermissionDeniedError(absl::StrCat(
        "program '", name, "' is not executable; chmod +x makes it so"));
  }
  return absl::NotFoundError(absl::StrCat(
      "program '", name, "' cannot be started: ", std::strerror(error),
      paths.size() > 1 || paths[0] != name
          ? "; it is in no folder of PATH, name its path, as in ./"
          : "",
      paths.size() > 1 || paths[0] != name ? name : ""));
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const Options& options) {
  SL_CHECK(!options.command.empty(), "a program to start");
  Descriptor log;
  if (!options.log_path.empty()) {
    SL_ASSIGN_OR_RETURN(log, OpenLog(options.log_path));
  }
  SL_ASSIGN_OR_RETURN(Pipe report, OpenPipe());
  const std::vector<char*> arguments = Pointers(options.command);
  const std::vector<std::string> environment_texts =
      EnvironmentWith(options.environment);
  const std::vector<char*> environment = Pointers(environment_texts);
  const pid_t parent = getpid();
  const int64_t kills_before = OutOfMemoryKills();
  const pid_t pid = fork();
  if (pid < 0) {
    return SystemError(absl::StrCat("starting ", options.command[0]), errno);
  }
  if (pid == 0) {
    const auto or_log = [&](int fd) { return fd >= 0 ? fd : log.get(); };
    BecomeProgram(arguments.data(), environment.data(), options.detached,
                  parent, options.standard_input,
                  or_log(options.standard_output),
                  or_log(options.standard_error), report.write.get());
  }
  ChildProcess child(pid, kills_before);
  report.write = Descriptor();
  // The pipe closes with exec; until then only a failure writes to it.
  int error = 0;
  ssize_t received;
  do {
    received = read(report.read.get(), &error, sizeof(error));
  } while (received < 0 && errno == EINTR);
  if (received == 0) return child;
  return SystemError(absl::StrCat("starting ", options.command[0]), error);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_),
      running_(std::exchange(other.running_, false)),
      killed_(other.killed_),
      kills_before_(other.kills_before_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  KillAndWait();
  pid_ = other.pid_;
  running_ = std::exchange(other.running_, false);
  killed_ = other.killed_;
  kills_before_ = other.kills_before_;
  return *this;
}

ChildProcess::~ChildProcess() { KillAndWait(); }

void ChildProcess::KillAndWait() {
  if (!running_) return;
  Signal(SIGKILL);
  Wait();
}

ExitStatus ChildProcess::KillGroupAndReap() {
  kill(-pid_, SIGKILL);
  int status = 0;
  rusage used = {};
  while (wait4(pid_, &status, 0, &used) < 0 && errno == EINTR) {
  }
  running_ = false;
  ExitStatus exit = {.memory_bytes_max = int64_t{1024} * used.ru_maxrss};
  if (!WIFSIGNALED(status)) {
    exit.code = WEXITSTATUS(status);
    return exit;
  }
  exit.signal = WTERMSIG(status);
  exit.maybe_out_of_memory =
      exit.signal == SIGKILL && !killed_ && OutOfMemoryKills() > kills_before_;
  return exit;
}

std::optional<ExitStatus> ChildProcess::Poll() {
  if (!running_) return std::nullopt;
  siginfo_t ended = {};
  if (waitid(P_PID, static_cast<id_t>(pid_), &ended,
             WEXITED | WNOHANG | WNOWAIT) != 0 ||
      ended.si_pid != pid_) {
    return std::nullopt;
  }
  return KillGroupAndReap();
}

ExitStatus ChildProcess::Wait() {
  SL_CHECK(running_, "a child to wait for");
  siginfo_t ended = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOWAIT) <
             0 &&
         errno == EINTR) {
  }
  return KillGroupAndReap();
}

void ChildProcess::Signal(int signal) {
  if (!running_) return;
  if (signal == SIGKILL) killed_ = true;
  kill(-pid_, signal);
}

}  // namespace slackline
