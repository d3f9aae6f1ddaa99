#include "common/io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status FileError(absl::string_view attempt, const std::string& path,
                       int error_number) {
  const std::string message = absl::StrCat(
      attempt, " ", path, ": ", std::generic_category().message(error_number));
  if (error_number == ENOENT) {
    return absl::NotFoundError(
        absl::StrCat(message, "; create the folder first"));
  }
  if (error_number == ENOSPC || error_number == EDQUOT) {
    return absl::ResourceExhaustedError(
        absl::StrCat(message, "; free some space"));
  }
  return absl::UnavailableError(message);
}

absl::Status WriteAll(int file, absl::string_view bytes,
                      const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return FileError("write", path, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status WriteAndSync(const std::string& path,
                          absl::Span<const absl::string_view> parts) {
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return FileError("create", path, errno);
  absl::Status status;
  for (const absl::string_view part : parts) {
    status = WriteAll(file, part, path);
    if (!status.ok()) break;
  }
  if (status.ok() && fsync(file) != 0) status = FileError("sync", path, errno);
  if (close(file) != 0 && status.ok()) status = FileError("close", path, errno);
  return status;
}

// Makes a rename in `folder` durable. Some file systems cannot sync a folder;
// the file itself is complete all the same, so that is not an error.
void SyncFolder(const std::string& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  fsync(file);
  close(file);
}

}  // namespace

absl::Status WriteFileAtomically(const std::string& path,
                                 absl::Span<const absl::string_view> parts) {
  const std::string partial = absl::StrCat(path, ".partial-", getpid());
  absl::Status status = WriteAndSync(partial, parts);
  if (status.ok() && std::rename(partial.c_str(), path.c_str()) != 0) {
    status = FileError("rename to", path, errno);
  }
  if (!status.ok()) {
    unlink(partial.c_str());
    return status;
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  SyncFolder(folder.empty() ? "." : folder);
  return absl::OkStatus();
}

}  // namespace slackline
