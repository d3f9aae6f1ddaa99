#include "server/coordinator/state/file_state_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/io/atomic_file.h"
#include "common/io/file_error.h"
#include "common/io/regular_file.h"
#include "common/status.h"
#include "server/coordinator/state/state_batch.h"
#include "server/coordinator/state/state_log.h"

namespace slackline {
namespace {

// A log is written anew when it is so many times as long as it was then, and
// so many bytes.
constexpr int64_t kGrowth = 4;
constexpr int64_t kGrowthBytes = 1 << 20;

absl::Status TooLong(const std::string& path) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "write ", path, ": a file of more than ", kStateBytesMax,
      " bytes would not be read again: the state of the coordinator is too "
      "long"));
}

// "process 123 of host a", as the one that has the lock has written it.
std::string HolderIn(int lock) {
  std::array<char, 512> text;
  const ssize_t bytes = pread(lock, text.data(), text.size(), 0);
  if (bytes <= 0) return "another process";
  return absl::CHexEscape({text.data(), static_cast<size_t>(bytes)});
}

}  // namespace

absl::StatusOr<CoordinatorState> ReadStateFile(const std::string& path) {
  SL_ASSIGN_OR_RETURN(const std::string file,
                      ReadRegularFile(path, kStateBytesMax));
  return ReadStateLog(path, file);
}

absl::StatusOr<std::unique_ptr<FileStateStore>> FileStateStore::Lock(
    const std::string& path) {
  const std::string lock_path = absl::StrCat(path, ".lock");
  Descriptor opened(
      open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!opened.valid()) return FileError("open", lock_path, errno);
  const int lock = opened.get();
  std::unique_ptr<FileStateStore> store(
      new FileStateStore(path, std::move(opened)));
  if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
    // Not every file system has locks.
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) {
      store->has_lock_ = false;
      return store;
    }
    if (errno != EWOULDBLOCK) return FileError("lock", lock_path, errno);
    return absl::FailedPreconditionError(absl::StrCat(
        path, " belongs to the coordinator in ", HolderIn(lock),
        ", which is still running; end it first, or choose another --out"));
  }
  const std::string holder = ThisProcess();
  if (ftruncate(lock, 0) != 0 ||
      pwrite(lock, holder.data(), holder.size(), 0) < 0) {
    return FileError("write", lock_path, errno);
  }
  return store;
}

absl::StatusOr<std::unique_ptr<FileStateStore>> FileStateStore::Create(
    const std::string& path) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<FileStateStore> store, Lock(path));
  SL_RETURN_IF_ERROR(store->Rewrite());
  return store;
}

absl::StatusOr<std::unique_ptr<FileStateStore>> FileStateStore::Open(
    const std::string& path) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<FileStateStore> store, Lock(path));
  SL_ASSIGN_OR_RETURN(store->state_, ReadStateFile(path));
  // So nothing has to be appended behind a batch that is not whole.
  SL_RETURN_IF_ERROR(store->Rewrite());
  return store;
}

absl::Status FileStateStore::Commit(const std::vector<StateChange>& changes) {
  if (!failed_.ok() || changes.empty()) return failed_;
  failed_ = AwaitLead();
  struct stat there;
  if (failed_.ok() && stat(path_.c_str(), &there) != 0 && errno == ENOENT)
    failed_ = Rewrite();
  if (failed_.ok()) failed_ = Append(changes);
  return failed_;
}

absl::Status FileStateStore::AwaitLead() {
  struct stat ours;
  struct stat there;
  if (fstat(file_.get(), &ours) != 0 || stat(path_.c_str(), &there) != 0 ||
      (ours.st_ino == there.st_ino && ours.st_dev == there.st_dev)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path_,
      " was replaced: another coordinator has begun in its place, or somebody "
      "has put another file there"));
}

absl::Status FileStateStore::Append(const std::vector<StateChange>& changes) {
  const absl::StatusOr<std::string> batch = EncodeBatch(changes);
  if (!batch.ok()) return Annotate(batch.status(), "write " + path_);
  const int64_t end = bytes_ + static_cast<int64_t>(batch->size());
  if (end > kStateBytesMax) return TooLong(path_);
  for (size_t done = 0; done < batch->size();) {
    const ssize_t some =
        write(file_.get(), batch->data() + done, batch->size() - done);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) return FileError("write", path_, errno);
    done += static_cast<size_t>(some);
  }
  if (fdatasync(file_.get()) != 0) return FileError("sync", path_, errno);
  bytes_ = end;
  ApplyChanges(changes, &state_);
  return bytes_ > rewrite_above_ ? Rewrite() : absl::OkStatus();
}

absl::Status FileStateStore::Rewrite() {
  const absl::StatusOr<std::string> batch = EncodeBatch(state_);
  if (!batch.ok()) return Annotate(batch.status(), "write " + path_);
  const std::string header = StateLogHeader(batch->size());
  const auto bytes = static_cast<int64_t>(header.size() + batch->size());
  if (bytes > kStateBytesMax) return TooLong(path_);
  if (const absl::Status written = WriteFileAtomically(path_, {header, *batch});
      !written.ok()) {
    if (!file_.valid()) return written;
    // The log has everything without it, too. Tried again when it is longer.
    rewrite_above_ = 2 * bytes_;
    return absl::OkStatus();
  }
  // If the machine stops the old file may be there again until the new one's
  // name is durable, and what is appended now would be lost.
  const std::string folder =
      std::filesystem::path(path_).parent_path().string();
  SL_RETURN_IF_ERROR(SyncFolder(folder.empty() ? "." : folder));
  // The former file is closed after that, which may set errno, too.
  Descriptor opened(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!opened.valid()) return FileError("open", path_, errno);
  file_ = std::move(opened);
  bytes_ = bytes;
  rewrite_above_ = std::min(kGrowth * bytes + kGrowthBytes, kStateBytesMax / 2);
  return absl::OkStatus();
}

}  // namespace slackline
