#include "common/keys/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/config/shell_line.h"
#include "common/io/descriptor.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::Status CheckPrivate(const PrivateFile& of, const struct stat& file) {
  if (!S_ISREG(file.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(of.name, ": is no regular file"));
  }
  const uid_t self = geteuid();
  if (file.st_uid != self && file.st_uid != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(of.name, ": belongs to user ", file.st_uid,
                     ", who can change it, and this process is of user ", self,
                     "; take a copy of your own that nobody else can read"));
  }
  // Engines give secrets as files of root that a group may read, and nobody
  // write where root itself reads them.
  const bool is_given =
      file.st_uid == 0 && (self != 0 || (file.st_mode & S_IWUSR) == 0);
  const mode_t others = is_given ? (S_IWGRP | S_IRWXO) : (S_IRWXG | S_IRWXO);
  if ((file.st_mode & others) == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      of.name, ": others can read or change it (its mode is ",
      absl::Hex(file.st_mode >> 6 & 7), absl::Hex(file.st_mode >> 3 & 7),
      absl::Hex(file.st_mode & 7),
      ", 600 is required), so it protects nothing; ",
      ShellLine({"chmod", "600", of.path}), ", and ", of.if_read));
}

}  // namespace

absl::StatusOr<std::string> ReadPrivateFile(const PrivateFile& of) {
  const Descriptor file(
      open(of.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return PrivateFileError(of.name, "open", errno);
  struct stat status {};
  if (fstat(file.get(), &status) != 0)
    return PrivateFileError(of.name, "stat", errno);
  SL_RETURN_IF_ERROR(CheckPrivate(of, status));
  std::string text(of.bytes_max + 1, '\0');
  size_t bytes = 0;
  while (bytes < text.size()) {
    const ssize_t count =
        read(file.get(), text.data() + bytes, text.size() - bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return PrivateFileError(of.name, "read", errno);
    if (count == 0) break;
    bytes += static_cast<size_t>(count);
  }
  if (bytes > of.bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(of.name, ": has more than ", of.bytes_max, " bytes"));
  }
  text.resize(bytes);
  return text;
}

absl::Status PrivateFileError(const std::string& name, const char* call,
                              int error) {
  const std::string text =
      absl::StrCat(name, ": ", call, ": ", std::strerror(error));
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EEXIST) return absl::AlreadyExistsError(text);
  if (error == EACCES) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

}  // namespace slackline
