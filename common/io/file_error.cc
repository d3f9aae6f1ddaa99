#include "common/io/file_error.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace slackline {

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

}  // namespace slackline
