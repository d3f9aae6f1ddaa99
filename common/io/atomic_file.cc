#include "common/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/io/descriptor.h"
#include "common/io/file_error.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(
    const std::string& path) {
  std::string partial = absl::StrCat(path, ".partial-", getpid());
  const int file =
      open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return FileError("create", partial, errno);
  return std::unique_ptr<AtomicFile>(
      new AtomicFile(path, std::move(partial), file));
}

AtomicFile::~AtomicFile() {
  if (file_ >= 0) close(file_);
  if (!committed_) unlink(partial_.c_str());
}

absl::Status AtomicFile::Append(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(file_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return FileError("write", partial_, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  if (fsync(file_) != 0) return FileError("sync", partial_, errno);
  if (close(std::exchange(file_, -1)) != 0)
    return FileError("close", partial_, errno);
  if (std::rename(partial_.c_str(), path_.c_str()) != 0)
    return FileError("rename to", path_, errno);
  committed_ = true;
  const std::string folder =
      std::filesystem::path(path_).parent_path().string();
  // The file itself is complete, whatever becomes of its name.
  (void)SyncFolder(folder.empty() ? "." : folder);
  return absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> parts) {
  SL_ASSIGN_OR_RETURN(const auto file, AtomicFile::Create(path));
  for (const absl::string_view part : parts)
    SL_RETURN_IF_ERROR(file->Append(part));
  return file->Commit();
}

absl::Status SyncFolder(const std::string& folder) {
  const Descriptor file(
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.valid()) return FileError("open", folder, errno);
  const int error_number = fsync(file.get()) == 0 ? 0 : errno;
  // File systems that cannot sync a folder say so with these.
  if (error_number == 0 || error_number == EINVAL || error_number == ENOTSUP ||
      error_number == ENOSYS || error_number == EBADF ||
      error_number == EROFS) {
    return absl::OkStatus();
  }
  return FileError("sync", folder, error_number);
}

}  // namespace slackline
