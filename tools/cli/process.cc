#include "tools/cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status SystemError(absl::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() { Close(); }
  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// Runs in the child: only calls that are safe after fork() in a process with
// threads. `log` may be -1. Ends with exec, or writes errno to `report`.
[[noreturn]] void BecomeProgram(char* const* arguments, bool detached,
                                pid_t parent, int log, int report) {
  if (detached) {
    setsid();
  } else {
    setpgid(0, 0);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    ::signal(signal, SIG_DFL);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (!detached) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // It died before the line above.
  }
  const int null = open("/dev/null", O_RDONLY);
  if (null >= 0 && dup2(null, 0) >= 0 &&
      (log < 0 || (dup2(log, 1) >= 0 && dup2(log, 2) >= 0))) {
    if (null > 2) close(null);
    execv(arguments[0], arguments);
  }
  const int error = errno;
  // Nobody is left to be told if this fails, too.
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof(error));
  _exit(127);
}

ExitStatus StatusOf(int wait_status) {
  if (WIFSIGNALED(wait_status)) return {.signal = WTERMSIG(wait_status)};
  return {.code = WEXITSTATUS(wait_status)};
}

}  // namespace

std::string ExitStatus::ToString() const {
  if (signal == 0) return absl::StrCat("exited with code ", code);
  const char* const name = sigabbrev_np(signal);
  return absl::StrCat("was killed by signal ", signal,
                      name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const Options& options) {
  SL_CHECK(!options.command.empty(), "a program to start");
  const bool own_log = !options.log_path.empty();
  const FileDescriptor log(
      own_log ? open(options.log_path.c_str(),
                     O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
              : -1);
  if (own_log && log.get() < 0) {
    return SystemError(
        absl::StrCat("log file ", options.log_path, " cannot be opened"),
        errno);
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return SystemError("pipe", errno);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return SystemError(absl::StrCat("starting ", options.command[0]), errno);
  }
  if (pid == 0) {
    BecomeProgram(arguments.data(), options.detached, parent, log.get(),
                  write_end.get());
  }
  ChildProcess child(pid);
  write_end.Close();
  // The pipe closes with exec; until then only a failure writes to it.
  int error = 0;
  ssize_t received;
  do {
    received = read(read_end.get(), &error, sizeof(error));
  } while (received < 0 && errno == EINTR);
  if (received == 0) return child;
  return SystemError(absl::StrCat("starting ", options.command[0]), error);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_), running_(std::exchange(other.running_, false)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this == &other) return *this;
  KillAndWait();
  pid_ = other.pid_;
  running_ = std::exchange(other.running_, false);
  return *this;
}

ChildProcess::~ChildProcess() { KillAndWait(); }

void ChildProcess::KillAndWait() {
  if (!running_) return;
  Signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
}

std::optional<ExitStatus> ChildProcess::Poll() {
  if (!running_) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  running_ = false;
  return StatusOf(status);
}

ExitStatus ChildProcess::Wait() {
  SL_CHECK(running_, "a child to wait for");
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  running_ = false;
  return StatusOf(status);
}

void ChildProcess::Signal(int signal) {
  if (running_) kill(-pid_, signal);
}

}  // namespace slackline
