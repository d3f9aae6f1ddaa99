#include "common/config/address_secret.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace slackline {

bool MayHaveSecret(absl::string_view address) {
  const size_t scheme = address.find("://");
  if (scheme == absl::string_view::npos) return false;
  const absl::string_view rest = address.substr(scheme + 3);
  if (absl::StrContains(rest, '@')) return true;
  const size_t query = rest.find('?');
  if (query == absl::string_view::npos) return false;
  const std::string fields = absl::AsciiStrToLower(rest.substr(query));
  return absl::StrContains(fields, "password=") ||
         absl::StrContains(fields, "token=");
}

}  // namespace slackline
