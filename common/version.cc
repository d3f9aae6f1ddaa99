#include "common/version.h"

#include "absl/strings/str_cat.h"

namespace slackline {

std::string VersionNumber() { return SLACKLINE_VERSION; }

std::string BuildCommit() { return SLACKLINE_COMMIT; }

std::string VersionText(absl::string_view program) {
  return absl::StrCat(program, " ", VersionNumber(), " (", BuildCommit(), ")");
}

}  // namespace slackline
