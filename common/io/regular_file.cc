#include "common/io/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "common/io/descriptor.h"

namespace slackline {

absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t bytes_max) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) {
    const int error_number = errno;
    const std::string message = absl::StrCat(
        "open ", path, ": ", std::generic_category().message(error_number));
    return error_number == ENOENT || error_number == ENOTDIR
               ? absl::NotFoundError(message)
               : absl::UnavailableError(message);
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return absl::DataLossError(absl::StrCat(path, " is not a file"));
  if (status.st_size > bytes_max) {
    return absl::DataLossError(absl::StrCat(path, " has ", status.st_size,
                                            " bytes; at most ", bytes_max,
                                            " are read"));
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t some = pread(file.get(), text.data() + done,
                               text.size() - done, static_cast<off_t>(done));
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) {
      return absl::UnavailableError(absl::StrCat(
          "read ", path, ": ", std::generic_category().message(errno)));
    }
    if (some == 0) break;
    done += static_cast<size_t>(some);
  }
  text.resize(done);
  return text;
}

}  // namespace slackline
