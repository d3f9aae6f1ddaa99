#include "common/io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace slackline {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t bytes_max) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int error_number = errno;
  struct stat status {};
  if (file < 0) {
    const std::string message = absl::StrCat(
        "open ", path, ": ", std::generic_category().message(error_number));
    return error_number == ENOENT || error_number == ENOTDIR
               ? absl::NotFoundError(message)
               : absl::UnavailableError(message);
  }
  std::string text;
  absl::Status read;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    read = absl::DataLossError(absl::StrCat(path, " is not a file"));
  } else if (status.st_size > bytes_max) {
    read = absl::DataLossError(absl::StrCat(path, " has ", status.st_size,
                                            " bytes; at most ", bytes_max,
                                            " are read"));
  } else {
    text.resize(static_cast<size_t>(status.st_size));
  }
  size_t done = 0;
  while (read.ok() && done < text.size()) {
    const ssize_t some = pread(file, text.data() + done, text.size() - done,
                               static_cast<off_t>(done));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) {
      read = absl::UnavailableError(absl::StrCat(
          "read ", path, ": ", std::generic_category().message(errno)));
    } else if (some == 0) {
      text.resize(done);
    } else {
      done += static_cast<size_t>(some);
    }
  }
  close(file);
  if (!read.ok()) return read;
  return text;
}

}  // namespace slackline
