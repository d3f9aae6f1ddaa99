#include "tools/cli/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace slackline {
namespace {

constexpr int kTriesMax = 20;
constexpr absl::Duration kPause = absl::Milliseconds(5);

bool IsWrittenByRun(int fd) {
  std::string begin(sizeof(kWrittenByRun) - 1, '\0');
  const ssize_t got = pread(fd, begin.data(), begin.size(), 0);
  return got == static_cast<ssize_t>(begin.size()) && begin == kWrittenByRun;
}

}  // namespace

RunLock RunLock::Take(const std::string& cluster_file) {
  // For writing: network file systems lock nothing else for one alone.
  FileDescriptor file(
      open(cluster_file.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return RunLock(FileDescriptor());
  for (int i = 0; i < kTriesMax; ++i) {
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0)
      return RunLock(std::move(file));
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    absl::SleepFor(kPause);
  }
  return RunLock(FileDescriptor());
}

RunLock::Holder RunLock::HolderOf(const std::string& cluster_file) {
  const FileDescriptor file(
      open(cluster_file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 || !IsWrittenByRun(file.get())) return Holder::kUnknown;
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) return Holder::kGone;
  return errno == EWOULDBLOCK ? Holder::kLives : Holder::kUnknown;
}

}  // namespace slackline
